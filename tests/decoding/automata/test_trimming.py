"""Trimming: what cannot end is gone, in each caller's context."""

import numpy as np
import pytest

from decoding.automata import byte_machine
from decoding.automata.byte_machine import CALL, DEAD, STRING, accepts
from decoding.automata.pushdown import Builder
from models.errors import ConstraintError
from tests.decoding.automata import machines


def two_callers(most=100, text=b""):
    """a(x|y)! or b(x): behind b, only values of label 0 may end; before, `text`."""
    built = Builder(most)
    value = built.state()
    last = built.text(value, text)
    for label, byte in enumerate(b"xy"):
        built.read(last, [byte], built.state(ends=label))
    start, over = built.state(), built.state(ends=0)
    left, right, mark = (built.state() for _ in range(3))
    built.read(start, b"a", left)
    built.read(start, b"b", right)
    for state in (left, right):
        built.read(state, text[:1] or b"xy", CALL + value)
    built.read(mark, b"!", over)
    built.back[left] = {0: mark, 1: mark}
    nowhere = built.state()  # reads nothing, and is no end
    built.back[right] = {0: over, 1: nowhere}
    return built.machine(start)


def test_values_end_with_labels_that_callers_use():
    built = two_callers()
    assert accepts(built, b"ax!") and accepts(built, b"ay!") and accepts(built, b"bx")
    at = byte_machine.read(built, byte_machine.Config(built.start), b"b")
    assert byte_machine.read(built, at, b"y").state == DEAD
    # No state is left that nothing can follow.
    dead = (built.moves == DEAD).all(1) & (built.ends < 0) & (built.final < 0)
    assert not dead[STRING:].any()


def test_contexts_count_as_states():
    """The text before the label is there twice; planted: states as they were built."""
    text = b"zzzzzzzz"
    whole, states = two_callers(text=text), len(two_callers().moves) + len(text)
    assert len(whole.moves) > states
    with pytest.raises(ConstraintError, match="needs more than"):
        two_callers(states + 1, text)


def test_nothing_to_read():
    built = Builder()
    start = built.state()
    built.read(start, b"a", built.state())
    assert built.machine(start).start == DEAD


def test_needs_and_costs_by_hand():
    built = machines.json_values()
    # A number, which ends by itself, needs a byte and no caller.
    assert (built.need[built.start], built.cost[built.start]) == (0, 1)
    at = byte_machine.read(built, byte_machine.Config(built.start), b"[")
    assert (built.need[at.state], built.cost[at.state]) == (0, 1)
    at = byte_machine.read(built, byte_machine.Config(built.start), b'{"a"')
    # `:0}`, with the object's state on the stack while the number is read.
    assert (built.need[at.state], built.cost[at.state]) == (1, 3)
    assert chr(built.exit[at.state]) == ":"


def test_fault_cost_without_the_caller():
    """Planted: costs of a called string alone fall short of the texts that end."""
    built = machines.json_values((5, 9))
    at = byte_machine.read(built, byte_machine.Config(built.start), b'{"a":"')
    text, state = b"", at
    while not byte_machine.is_final(built, state) and len(text) < 20:
        short = state.state == byte_machine.BODY and state.chars < 5
        exits = int(built.exit[state.state])
        byte = b"a" if short else bytes([exits])
        text, state = text + byte, byte_machine.read(built, state, byte)
    worst = np.where(built.back != DEAD, built.cost[built.back], 0).max(1)
    owed = sum(int(worst[caller]) for caller in at.stack)
    assert len(text) == 5 + int(built.cost[at.state]) + owed
    assert len(text) > 5 + int(built.cost[at.state])
    assert np.all(built.cost[built.ends >= 0] == 0)
