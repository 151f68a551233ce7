"""Trimming of pushdown machines: what cannot end is removed, in every context.

States are numbered in context: (state, set of labels with which its value may end), so
that no value ends with a label that its caller cannot use. Rows of 256 moves are runs
of equal ones, of which there are few; only whole tables are NumPy's.
"""

from typing import NamedTuple

import numpy as np

from decoding.automata import finishing
from decoding.automata.byte_machine import (
    CALL,
    DEAD,
    KINDS,
    MOST_LABELS,
    POP,
    STRING,
    ByteMachine,
    Moves,
)
from models.errors import ConstraintError


class Built(NamedTuple):
    """The states as they were built; the first ones are STRING's."""

    moves: list[Moves]
    ends: list[int]
    final: list[int]
    back: list[Moves]
    span: list[tuple[int, int]]


def trim(built: Built, start: int, most: int) -> ByteMachine:
    """Make the machine of what can end; its `start` is DEAD if that is nothing.

    Raises:
        ConstraintError: a value has more than 31 labels, or there are more than `most`
            states in context.
    """
    return _Contexts(built).machine(start, most)


def too_large(most: int) -> ConstraintError:
    """Make the error of a machine of more than `most` states."""
    return ConstraintError(
        f"the grammar needs more than {most} states: lower its counts or make it "
        "smaller"
    )


class _Contexts:
    """The states of a machine by the labels with which their values may end."""

    def __init__(self, built: Built) -> None:
        self.built = built
        raw = _dense(built.moves, 256)
        change = np.ones(raw.shape, bool)
        change[:, 1:] = raw[:, 1:] != raw[:, :-1]
        runs = np.flatnonzero(change)
        self.lengths = np.diff(runs, append=raw.size).tolist()
        self.values = raw.ravel()[runs].tolist()
        self.first = np.searchsorted(runs, np.arange(len(raw) + 1) * 256).tolist()
        # Distinct moves, by kind.
        self.ways: list[list[int]] = []
        self.states: list[list[int]] = []
        self.calls: list[list[int]] = []
        self.ended: list[int] = []  # labels without another byte, a set
        for q, ends in enumerate(built.ends):
            to = dict.fromkeys(self.values[self.first[q] : self.first[q + 1]])
            to.pop(DEAD, None)
            labels = {t - POP for t in to if t & POP} | ({ends} if ends >= 0 else set())
            if max(labels, default=0) >= MOST_LABELS:
                raise ConstraintError(
                    f"a value has {max(labels) + 1} labels, of {MOST_LABELS} at most: "
                    "make the grammar's alternatives fewer"
                )
            self.ways.append(list(to))
            self.states.append([t for t in to if not t & KINDS])
            self.calls.append([t - CALL for t in to if t & CALL])
            among = sum(1 << label for label in labels)
            if built.final[q] >= 0:
                among |= 1 << built.final[q]
            self.ended.append(among)
        self.labels = self._labels()

    def _labels(self) -> list[int]:
        """Return the set of labels with which the value of each state may end."""
        sets = self.ended[:]
        users: list[list[int]] = [[] for _ in sets]
        for q, (states, calls) in enumerate(zip(self.states, self.calls)):
            for t in (*states, *calls, *self.built.back[q].values()):
                users[t].append(q)
        todo = [q for q, among in enumerate(sets) if among]
        waiting = [bool(among) for among in sets]
        while todo:
            t = todo.pop()
            waiting[t] = False
            for q in users[t]:
                more = sets[q]
                for after in self.states[q]:
                    more |= sets[after]
                for c in self.calls[q]:
                    for label, after in self.built.back[q].items():
                        if sets[c] >> label & 1:
                            more |= sets[after]
                if more != sets[q]:
                    sets[q] = more
                    if not waiting[q]:
                        waiting[q] = True
                        todo.append(q)
        return sets

    def machine(self, start: int, most: int) -> ByteMachine:
        """Number the states in context that `start` reaches, and their moves."""
        built = self.built
        order = [(q, 1) for q in range(STRING)]
        number = {state: i for i, state in enumerate(order)}

        def visit(q: int, among: int) -> int:
            among &= self.labels[q]
            if not among:
                return DEAD
            key = (q, among)
            if key not in number:
                if len(order) >= most:
                    raise too_large(most)
                number[key] = len(order)
                order.append(key)
            return number[key]

        begin = visit(start, -1)
        values: list[int] = []
        lengths: list[int] = []
        firsts, back = [0], []
        for q, among in order:  # grows while it is read
            goes_on: Moves = {}
            to = {t: self._move(q, among, t, visit, goes_on) for t in self.ways[q]}
            to[DEAD] = DEAD
            low, high = self.first[q], self.first[q + 1]
            values.extend([to[value] for value in self.values[low:high]])
            lengths.extend(self.lengths[low:high])
            firsts.append(len(values))
            back.append(goes_on)
        width = 1 + max((label for row in back for label in row), default=0)
        table = np.repeat(np.array(values, np.int32), lengths)
        ends = [self._label(built.ends[q], among) for q, among in order]
        final = [self._label(built.final[q], among) for q, among in order]
        span = [built.span[q] for q, _ in order]
        over = [max(a, b) >= 0 for a, b in zip(ends, final)]
        rows = finishing.Rows(values, lengths, firsts, back, span, over)
        return ByteMachine(
            table.reshape(len(order), 256),
            np.array(ends, np.int32),
            np.array(final, np.int32),
            _dense(back, width),
            np.array(span, np.int32),
            begin,
            *finishing.finishing(rows),
        )

    @staticmethod
    def _label(label: int, among: int) -> int:
        return label if label >= 0 and among >> label & 1 else -1

    def _move(self, q: int, among: int, to: int, visit, goes_on: Moves) -> int:
        if to & POP:
            return to if among >> (to - POP) & 1 else DEAD
        if not to & CALL:
            return visit(to, among)
        usable = {
            label: t
            for label, t in self.built.back[q].items()
            if self.labels[to - CALL] >> label & 1 and self.labels[t] & among
        }
        if not usable:
            return DEAD
        callee = visit(to - CALL, sum(1 << label for label in usable))
        for label, t in usable.items():
            goes_on[label] = visit(t, among)
        return CALL + callee


def _dense(rows: list[Moves], width: int) -> np.ndarray:
    table = np.full((len(rows), width), DEAD, np.int32)
    for i, row in enumerate(rows):
        if row:
            table[i, list(row)] = list(row.values())
    return table
