"""Construction of machines."""

import pytest

from decoding.automata import byte_machine
from decoding.automata.pushdown import Builder
from models.errors import ConstraintError


def test_moves():
    built = Builder()
    start = built.state()
    end = built.text(start, b"abc")
    assert built.text(start, b"abd") != end  # with the states of "ab" in common
    built.ends[end] = built.final[end] = 0
    built.read(start, b"xy", end)
    machine = built.machine(start)
    for text in (b"abc", b"x", b"y"):
        assert byte_machine.accepts(machine, text)
    for text in (b"ab", b"abd", b"xa", b""):
        assert not byte_machine.accepts(machine, text)


def test_otherwise_keeps_moves():
    built = Builder()
    start, letter, rest = built.state(), built.state(ends=0), built.state(ends=0)
    built.read(start, b"a", letter)
    built.otherwise(start, rest)
    assert built.moves[start][ord("a")] == letter
    assert built.moves[start][0] == rest and len(built.moves[start]) == 256


def test_too_many_states():
    built = Builder(most=byte_machine.STRING + 2)
    built.text(built.state(), b"a")
    with pytest.raises(ConstraintError, match="more than 24 states: lower its counts"):
        built.state()


def test_too_many_labels():
    built = Builder()
    start = built.state()
    built.read(start, b"a", built.state(ends=31))
    with pytest.raises(ConstraintError, match="32 labels"):
        built.machine(start)
