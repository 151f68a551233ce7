"""Subsets of positions: late pushes, labels, look-ahead, limits."""

import pytest

from decoding.automata import (
    byte_machine,
    call_sites,
    grammar_syntax,
    network_building,
    subsets,
)
from models.errors import ConstraintError

LATE = """root ::= flat | deep
flat ::= "(" [a-b]* "."
deep ::= "(" inner ")"
inner ::= [a-b]* ("(" inner ")")?
"""


def subsets_of(source: str, sharing: int = 2, **limits) -> subsets.Subsets:
    grammar = grammar_syntax.parse_rules(source, "root")
    sites = call_sites.CallSites(network_building.network_of(grammar))
    return subsets.Subsets(sites, sites.pushing(set(), sharing), 10, **limits)


def machine_of(built: subsets.Subsets) -> byte_machine.ByteMachine:
    builder, start = built.builder()
    return builder.machine(start)


def height(machine: byte_machine.ByteMachine, text: bytes) -> int:
    return len(
        byte_machine.read(machine, byte_machine.Config(machine.start), text).stack
    )


def test_a_push_waits_while_alternatives_disagree():
    machine = machine_of(subsets_of(LATE))
    assert height(machine, b"(ab") == 0  # `flat` has no call to push
    assert height(machine, b"(ab(a") == 2  # ruled out: both brackets are pushed
    for text, valid in ((b"(ab.", True), (b"(ab(a))", True), (b"(ab(a.)", False)):
        assert byte_machine.accepts(machine, text) == valid


def test_the_label_is_the_set_of_alternatives_that_ended():
    source = """root ::= "<" one ">1" | "<" two ">2"
one ::= "(" one ")" | "a" | "c"
two ::= "(" two ")" | "b" | "c"
"""
    built = subsets_of(source)
    machine = machine_of(built)
    assert set(built.labels) >= {frozenset([0]), frozenset([1]), frozenset([0, 1])}
    good = [b"<((a))>1", b"<((b))>2", b"<((c))>1", b"<((c))>2"]
    bad = [b"<((a))>2", b"<((b))>1", b"<((c)>2"]
    assert all(byte_machine.accepts(machine, text) for text in good)
    assert not any(byte_machine.accepts(machine, text) for text in bad)


SPACES = """root ::= "(" list ")" | "x"
list ::= root (" "+ root)* " "*
"""


def test_an_end_counts_only_before_what_can_follow():
    machine = machine_of(subsets_of(SPACES))
    assert byte_machine.accepts(machine, b"(x  (x  )  x )")


def test_fault_ends_count_before_any_byte(monkeypatch):
    """Planted: without look-ahead, space behind a list is a conflict."""
    monkeypatch.setattr(subsets.Subsets, "first", lambda self, frame: -1)
    with pytest.raises(subsets.Conflict, match="byte ' '"):
        subsets_of(SPACES)


def test_conflicts_name_their_calls():
    source = 'root ::= "a" root "a" | "b"\n'.replace('"b"', '"a"')
    with pytest.raises(subsets.Conflict, match="byte 'a' a value of 'root'") as error:
        subsets_of(source)
    assert error.value.sites


def test_limits():
    with pytest.raises(subsets.TooLarge, match="more than 30 states"):
        subsets_of("root ::= [ab]* [a] [ab] [ab] [ab] [ab] [ab]", most=30)
    alternatives = " | ".join(f'"(" v{i} "){i}"' for i in range(6))
    rules = "\n".join(
        f'v{i} ::= "(" v{i} ")" | [{"abcdefghijklmnop"[i:]}]' for i in range(6)
    )
    with pytest.raises(ConstraintError):
        subsets_of(f"root ::= {alternatives}\n{rules}", most=20)
