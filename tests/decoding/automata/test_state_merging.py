"""Merged machines read what they read before; no two states are alike."""

import numpy as np

from decoding.automata import byte_machine, pushdown, state_merging


def _machine() -> byte_machine.ByteMachine:
    """`a` or `b` inside brackets, with states for each letter that do the same."""
    built = pushdown.Builder()
    value = built.state()
    for letter in b"ab":
        over = built.state(ends=0)
        built.read(value, [letter], over)
        inner, closed = built.state(), built.state(ends=0)
        built.read(value, b"[" if letter == 97 else b"(", inner)
        built.read(inner, b"ab[(", byte_machine.CALL + value)
        waiting = built.state()
        built.back[inner][0] = waiting
        built.read(waiting, b"]" if letter == 97 else b")", closed)
    return built.machine(value)


TEXTS = [b"a", b"b", b"[a]", b"(b)", b"[(a)]", b"[(a])", b"([b])", b"", b"[]", b"a]"]


def _verdicts(machine: byte_machine.ByteMachine) -> list[bool]:
    return [byte_machine.accepts(machine, text) for text in TEXTS]


def test_equal_states_become_one():
    machine = _machine()
    merged = state_merging.merge_states(machine)
    assert _verdicts(merged) == _verdicts(machine)
    assert sum(_verdicts(machine)) == 6
    assert len(merged.ends) == len(machine.ends) - 3  # four ends are one
    again = state_merging.merge_states(merged)
    assert all(np.array_equal(a, b) for a, b in zip(again, merged))


def test_fault_states_that_return_elsewhere_are_merged(monkeypatch):
    """Planted: two states that differ only by what is behind a value are one."""
    machine = _machine()
    blind = machine._replace(back=np.minimum(machine.back, 0))
    number = state_merging._numbered
    rows = np.concatenate([machine.moves, machine.back], 1)
    assert len(np.unique(number(rows))) > len(np.unique(number(blind.moves)))
    opened = byte_machine.read(machine, byte_machine.Config(machine.start), b"[").state
    other = byte_machine.read(machine, byte_machine.Config(machine.start), b"(").state
    back = machine.back.copy()
    back[opened] = back[other]
    assert _verdicts(machine._replace(back=back)) != _verdicts(machine)
