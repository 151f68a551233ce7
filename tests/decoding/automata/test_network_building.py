"""Thompson's construction: what becomes a rule of its own, and what is too large."""

from itertools import chain

import pytest

from decoding.automata import (
    grammar_syntax,
    lark_syntax,
    network_building,
    networks,
)
from decoding.automata.grammar_rules import Call, Lexeme, Repeat, Sequence, Text
from models.errors import ConstraintError


def test_runs_between_literals_are_joined():
    a, b, comma = Call("a"), Call("b"), Text(b",")
    part = Sequence((a, b, comma, a, b, comma, b))
    joined = [a, b, comma, Sequence((a, b)), comma, b]
    assert network_building._runs(part) == joined


def test_brackets_hold_one_call():
    grammar = grammar_syntax.parse_rules('root ::= "(" root? root* ")" | "x"', "root")
    net = network_building.network_of(grammar)
    callers = [state for state, calls in enumerate(net.calls) if calls]
    opened = {to for mask, to in chain(*net.reads) if mask == 1 << ord("(")}
    behind = {s for state in opened for s in net.silently(state)}
    assert sum(len(net.calls[state]) for state in behind & set(callers)) == len(opened)


def test_a_literal_is_counted_inside_patterns():
    grammar = lark_syntax.parse_rules('start: "if" | NAME\nNAME: /[a-z]+/', "start")
    net = network_building.network_of(grammar)
    equal = {words for guards in net.guards for _, _, words in guards}
    assert equal == {frozenset(), frozenset({"'if'"})}
    assert set(net.literal.values()) == {"'if'"}
    assert {net.names[rule] for rule in net.lexemes} == {"'if'", "NAME"}


def test_a_network_has_a_bound(monkeypatch):
    monkeypatch.setattr(networks, "MOST_STATES", 100)
    grammar = grammar_syntax.parse_rules('root ::= ("a"{30}){30}', "root")
    with pytest.raises(ConstraintError, match="more than 100 states"):
        network_building.network_of(grammar)


def test_lexemes_are_not_split():
    part = Sequence((Lexeme("A"), Repeat(Call("b"), 0, None), Lexeme("C")))
    assert network_building._runs(part) == list(part.items)
