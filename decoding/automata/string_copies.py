"""Bounds of string lengths as states: a copy of STRING for each number of characters.

On the device a register counts the characters of a string, so that bounds of a length
cost no states. Summaries of a machine have no registers: here each count has a copy of
the states instead.
"""

import numpy as np

from decoding.automata.byte_machine import (
    ANY_LENGTH,
    BODY,
    CALL,
    DEAD,
    KINDS,
    OVER,
    STRING,
    ByteMachine,
)
from models.errors import ConstraintError

MOST_COPIES = 1024  # of the 22 states of a string


def without_spans(machine: ByteMachine, longest: int = ANY_LENGTH[1]) -> ByteMachine:
    """Return a machine of the same texts whose `span` has no bounds.

    Args:
        machine: a machine over bytes.
        longest: the texts have at most so many bytes; bounds above cost no copies.

    Raises:
        ConstraintError: the bounds need more than 1,024 counts.
    """
    span = machine.span.astype(np.int64)
    span[:, 0] = np.minimum(span[:, 0], longest + 1)
    span[span[:, 1] >= longest, 1] = ANY_LENGTH[1]
    bounded = (span != ANY_LENGTH).any(1)
    calls = (machine.moves != DEAD) & (machine.moves & KINDS == CALL)
    into_string = calls & ((machine.moves & ~KINDS) < STRING) & bounded[:, None]
    spans = np.unique(span[into_string.any(1)], axis=0)
    # With no upper bound, counts from the lower one on are alike.
    tops = np.where(spans[:, 1] < ANY_LENGTH[1], spans[:, 1], spans[:, 0])
    if (tops + 1).sum() > MOST_COPIES:
        raise ConstraintError(
            f"bounds of string lengths need {int((tops + 1).sum())} counts, of "
            f"{MOST_COPIES} at most on a canvas: lower minLength and maxLength"
        )
    size = len(machine.ends)
    sources = np.concatenate([np.arange(size), np.tile(range(STRING), sum(tops + 1))])
    leaves = {
        name: leaf[sources]
        for name, leaf in machine._asdict().items()
        if name != "start"
    }
    rows = ByteMachine(**leaves, start=machine.start)
    base = size
    for (low, high), top in zip(spans.tolist(), tops.tolist()):
        _count(rows, base, low, high, top)
        callers = np.flatnonzero((span == (low, high)).all(1))
        block = rows.moves[callers]
        rows.moves[callers] = np.where(into_string[callers], block + base, block)
        base += STRING * (top + 1)
    rows.span[:] = ANY_LENGTH
    return rows


def _count(rows: ByteMachine, base: int, low: int, high: int, top: int) -> None:
    """Let the copies from `base` on count 0 to `top` characters."""
    for count in range(top + 1):
        first = base + STRING * count
        block = rows.moves[first : first + STRING]
        inside = np.where(block == DEAD, DEAD, block + first)
        after = min(count + 1, top) if high >= ANY_LENGTH[1] else count + 1
        counted = block[BODY] != OVER
        further = block[BODY] + base + STRING * after
        further = np.where(after > top, DEAD, further)
        inside[BODY] = np.where(counted & (block[BODY] != DEAD), further, inside[BODY])
        rows.moves[first : first + STRING] = inside
        if count < low:
            rows.ends[first + OVER] = rows.final[first + OVER] = -1
            rows.moves[first + OVER] = DEAD
