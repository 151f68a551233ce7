"""Trimming of pushdown machines: what cannot end is removed, in every context.

A rule gets a copy for each set of labels that its callers can go on with, so no value
ends with a label that its caller cannot use. Then `need` and `cost` are finite at every
state that is left.
"""

from typing import TYPE_CHECKING

import numpy as np

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

if TYPE_CHECKING:
    from decoding.automata.pushdown import Builder


def trim(built: "Builder", start: int) -> ByteMachine:
    """Make the machine of what can end; its `start` is DEAD if that is nothing.

    Raises:
        ConstraintError: a value has more than 31 labels.
    """
    return _Trimmed(built, start).machine()


class _Trimmed:
    """States in context: (state, set of labels with which its value may end)."""

    def __init__(self, built: "Builder", start: int) -> None:
        self.built, self.start = built, start
        # Distinct moves, by kind: few of 256 bytes differ.
        self.states: list[list[int]] = []
        self.calls: list[list[int]] = []
        self.ended: list[int] = []  # labels without another byte, a set
        for moves, ends in zip(built.moves, built.ends):
            to = set(moves.values())
            labels = {t - POP for t in to if t & POP} | ({ends} if ends >= 0 else set())
            if max(labels, default=0) >= MOST_LABELS:
                raise ConstraintError(
                    f"a value has {max(labels) + 1} labels, of {MOST_LABELS} at most: "
                    "make the grammar's alternatives fewer"
                )
            self.states.append([t for t in to if not t & KINDS])
            self.calls.append([t - CALL for t in to if t & CALL])
            self.ended.append(sum(1 << label for label in labels))
        for q, final in enumerate(built.final):
            if final >= 0:
                self.ended[q] |= 1 << final
        self.labels = self._labels()

    def _labels(self) -> list[int]:
        """Return the set of labels with which the value of each state may end."""
        sets = self.ended[:]
        users: list[set[int]] = [set() for _ in sets]
        for q, (states, calls) in enumerate(zip(self.states, self.calls)):
            for t in states:
                users[t].add(q)
            for c in calls:
                users[c].add(q)
            for t in self.built.back[q].values():
                users[t].add(q)
        todo = list(range(len(sets)))
        while todo:
            q = todo.pop()
            more = sets[q]
            for t in self.states[q]:
                more |= sets[t]
            for c in self.calls[q]:
                for label, t in self.built.back[q].items():
                    if sets[c] >> label & 1:
                        more |= sets[t]
            if more != sets[q]:
                sets[q] = more
                todo.extend(users[q])
        return sets

    def machine(self) -> ByteMachine:
        """Number the states in context that the start reaches, and their moves."""
        order = [(q, 1) for q in range(STRING)]
        number = {state: i for i, state in enumerate(order)}
        start = DEAD

        def visit(q: int, among: int) -> int:
            among &= self.labels[q]
            if not among:
                return DEAD
            key = (q, among)
            if key not in number:
                number[key] = len(order)
                order.append(key)
            return number[key]

        start = visit(self.start, -1)
        moves, back = [], []
        for q, among in order:  # grows while it is read
            row: Moves = {}
            seen: dict[int, int] = {}
            goes_on: Moves = {}
            for byte, to in self.built.moves[q].items():
                if to not in seen:
                    seen[to] = self._move(q, among, to, visit, goes_on)
                if seen[to] != DEAD:
                    row[byte] = seen[to]
            moves.append(row)
            back.append(goes_on)
        width = 1 + max((label for row in back for label in row), default=0)
        ends = np.array([self._label(self.built.ends, *key) for key in order], np.int32)
        final = np.array(
            [self._label(self.built.final, *key) for key in order], np.int32
        )
        span = [self.built.span[q] for q, _ in order]
        need, cost, exit_ = _finishing(moves, back, span, ends, final)
        return ByteMachine(
            _dense(moves, 256),
            ends,
            final,
            _dense(back, width),
            np.array(span, np.int32),
            start,
            need,
            cost,
            exit_,
        )

    @staticmethod
    def _label(labels: list[int], q: int, among: int) -> int:
        return labels[q] if labels[q] >= 0 and among >> labels[q] & 1 else -1

    def _move(self, q, among: int, to: int, visit, goes_on: Moves) -> int:
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


_FAR = 2**20

Way = tuple[int, tuple[int, ...]]  # a state behind a byte, and the states pushed


def _ways(
    moves: list[Moves], back: list[Moves], ends: np.ndarray, final: np.ndarray
) -> list[dict[Way | None, int]]:
    """Return where one byte leads from each state, with the least such byte.

    None: the value may be over before that byte; its byte is then -1.
    """
    ways: list[dict[Way | None, int]] = []
    empty: tuple[int, ...] = ()
    for q, row in enumerate(moves):
        leads: dict[Way | None, int] = {}
        if ends[q] >= 0 or final[q] >= 0 or any(to & POP for to in row.values()):
            leads[None] = -1
        for byte, to in sorted(row.items()):
            at, pushed = q, empty
            while to != DEAD and to & KINDS:
                if to & CALL:
                    at, pushed = to - CALL, (*pushed, at)
                elif pushed:
                    at, pushed = back[pushed[-1]].get(to - POP, DEAD), pushed[:-1]
                else:
                    break
                to = moves[at].get(byte, DEAD) if at != DEAD else DEAD
            if to != DEAD and not to & KINDS:
                leads.setdefault((to, pushed), byte)
        ways.append(leads)
    return ways


def _finishing(
    moves: list[Moves],
    back: list[Moves],
    span: list[tuple[int, int]],
    ends: np.ndarray,
    final: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `need`, `cost` and `exit` of each state: least fixed points over bytes."""
    ways = _ways(moves, back, ends, final)
    users: list[set[int]] = [set() for _ in moves]
    for q, leads in enumerate(ways):
        for way in leads:
            if way is not None:
                users[way[0]].add(q)
                for caller in way[1]:
                    for after in back[caller].values():
                        users[after].add(q)
    need, cost, exit_ = ([_FAR] * len(moves) for _ in range(3))
    todo = list(range(len(moves)))
    while todo:
        q = todo.pop()
        before = need[q], cost[q]
        for way, byte in ways[q].items():
            if way is None:
                need[q], cost[q], exit_[q] = 0, 0, -1
                break
            state, pushed = way
            least, price = len(pushed) + need[state], 1 + cost[state]
            if pushed and state < STRING:
                price += span[pushed[-1]][0]
            for height, caller in enumerate(pushed):
                least = max(least, height + max(need[r] for r in back[caller].values()))
                price += max(cost[r] for r in back[caller].values())
            need[q] = min(need[q], least)
            if price < cost[q]:
                cost[q], exit_[q] = price, byte
        if (need[q], cost[q]) != before:
            todo.extend(users[q])
    rows = (np.array(values, np.int32) for values in (need, cost, exit_))
    return tuple(rows)  # type: ignore[return-value]
