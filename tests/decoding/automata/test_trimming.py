"""decoding/automata/trimming.py: what cannot end is removed; `need` and `cost`."""

import numpy as np
import pytest

from decoding.automata import trimming
from decoding.automata.pushdown import CALL, POP, QUOTE, STRING, Builder, accepts
from models.errors import ConstraintError


def _nested(depth):
    """Values x or (value), called `depth` times at least, and a dead end."""
    builder = Builder()
    over = builder.state(ends=0)
    callee = builder.state()
    builder.read(callee, b"x", over)
    builder.read(callee, b"!", builder.state())
    for _ in range(depth):
        state, inner = builder.state(), builder.state()
        builder.read(state, b"(", inner)
        builder.read(inner, b"(x", CALL + callee)
        builder.back[inner][0] = builder.state()
        builder.read(builder.back[inner][0], b")", over)
        callee = state
    return builder.machine(callee)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_need_and_cost_of_nested_values(depth):
    machine = _nested(depth)
    assert machine.need[machine.start] == depth
    assert machine.cost[machine.start] == 1 + 2 * depth
    assert accepts(machine, b"(" * depth + b"x" + b")" * depth)


def test_fault_calls_that_push_nothing(monkeypatch):
    """Planted: the pushes of a call are those of its callee alone."""
    monkeypatch.setattr(
        trimming._Finishing,
        "pushes",
        lambda self: self._least(0, lambda q, callee, worst: max(callee[1], worst)),
    )
    machine = _nested(3)
    assert machine.need[machine.start] != 3


def test_dead_ends_are_removed():
    machine = _nested(0)
    assert (machine.moves[:, ord("!")][STRING:] == -1).all()
    assert len(machine.moves) == STRING + 2


def test_labels_that_a_caller_cannot_use_are_removed():
    builder = Builder()
    over = [builder.state(ends=label) for label in (0, 1)]
    value, start = builder.state(), builder.state()
    builder.read(value, b"a", over[0])
    builder.read(value, b"b", over[1])
    builder.read(start, b"ab", CALL + value)
    builder.back[start][1] = over[0]
    machine = builder.machine(start)
    assert accepts(machine, b"b") and not accepts(machine, b"a")
    callee = machine.moves[machine.start, ord("b")] - CALL
    assert machine.moves[callee, ord("a")] == -1


def test_cost_counts_the_least_string():
    builder = Builder()
    over, start = builder.state(ends=0), builder.state()
    builder.read(start, b'"', CALL + QUOTE)
    builder.back[start][0] = over
    builder.span[start] = (7, 9)
    machine = builder.machine(start)
    assert machine.cost[machine.start] == 9 and machine.need[machine.start] == 1


def test_tables_are_of_int32():
    machine = _nested(2)
    for table in (machine.moves, machine.ends, machine.final, machine.back):
        assert table.dtype == np.int32


def test_too_many_labels():
    builder = Builder()
    start = builder.state()
    builder.read(start, b"a", POP + 31)
    with pytest.raises(ConstraintError, match="32 labels"):
        builder.machine(start)
