"""What finishing a value takes of each state: calling states, and bytes.

The least of all bytes that a state may read. A value that is called may end with any of
its labels, so a call counts with the worst of them. The least come first, as in
Dijkstra's algorithm (Knuth 1977, "A generalization of Dijkstra's algorithm"), since no
way takes less than what it leads to.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from decoding.automata.byte_machine import CALL, DEAD, KINDS, POP, STRING, Moves

# Of states that cannot end: bytes always can in a trimmed machine, tokens need not.
FAR = 2**20


class Rows(NamedTuple):
    """A machine's moves as runs of equal ones: of q, those from firsts[q] on."""

    values: list[int]
    lengths: list[int]
    firsts: list[int]  # of Q states, and the number of runs
    back: list[Moves]
    span: list[tuple[int, int]]
    over: list[bool]  # whether the value may end


class _Way(NamedTuple):
    """One byte from a state, and where it leads."""

    source: int
    byte: int
    state: int
    pushed: tuple[int, ...]  # calling states


def finishing(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `need`, `cost` and `exit` of each state, int32[Q]."""
    ways = list(_ways(rows))
    need, _ = _least(rows, ways, is_bytes=False)
    cost, chosen = _least(rows, ways, is_bytes=True)
    exits = [-1 if way < 0 else ways[way].byte for way in chosen]
    return np.array(need, np.int32), np.array(cost, np.int32), np.array(exits, np.int32)


def _runs(rows: Rows, q: int) -> Iterator[tuple[int, int, int]]:
    """Yield (move, first byte, bytes) of the runs of a state that it can read."""
    byte = 0
    for i in range(rows.firsts[q], rows.firsts[q + 1]):
        if rows.values[i] != DEAD:
            yield rows.values[i], byte, rows.lengths[i]
        byte += rows.lengths[i]


def _ways(rows: Rows) -> Iterator[_Way]:
    """Yield the ways of all states, each once, with its least byte."""
    no_state: tuple[int, ...] = ()
    tables: dict[int, list[int]] = {}

    def move(q: int, byte: int) -> int:
        if q not in tables:
            low, high = rows.firsts[q], rows.firsts[q + 1]
            tables[q] = np.repeat(
                rows.values[low:high], rows.lengths[low:high]
            ).tolist()
        return tables[q][byte]

    def resolved(q: int, byte: int, to: int) -> tuple[int, tuple[int, ...]] | None:
        """Follow calls and returns until the byte is read; None: it is not."""
        at, pushed = q, no_state
        while to & KINDS:
            if to & CALL:
                at, pushed = to - CALL, (*pushed, at)
            elif not pushed:
                return None
            else:
                at, pushed = rows.back[pushed[-1]].get(to - POP, DEAD), pushed[:-1]
            to = move(at, byte) if at != DEAD else DEAD
            if to == DEAD:
                return None
        return to, pushed

    for q, over in enumerate(rows.over):
        if over:
            continue
        leads: dict[tuple[int, tuple[int, ...]], int] = {}
        for to, first, count in _runs(rows, q):
            if not to & KINDS:
                leads.setdefault((to, ()), first)
            elif to & CALL:
                for byte in range(first, first + count):
                    if (way := resolved(q, byte, to)) is not None:
                        leads.setdefault(way, byte)
        yield from (_Way(q, byte, *way) for way, byte in leads.items())


def _least(rows: Rows, ways: list[_Way], is_bytes: bool) -> tuple[list[int], list[int]]:
    """Return the least bytes, or else calling states, and the way taken; -1: none."""
    least, chosen = [FAR] * len(rows.over), [-1] * len(rows.over)
    users: list[list[int]] = [[] for _ in rows.over]
    left = []
    for i, way in enumerate(ways):
        behind = (after for q in way.pushed for after in rows.back[q].values())
        taken = {way.state, *behind}
        left.append(len(taken))
        for state in taken:
            users[state].append(i)
    heap = [(0, q, -1) for q in range(len(rows.over)) if _may_end(rows, q)]
    heapq.heapify(heap)
    while heap:
        value, state, way_in = heapq.heappop(heap)
        if least[state] != FAR:
            continue
        least[state], chosen[state] = value, way_in
        for i in users[state]:
            left[i] -= 1
            if not left[i] and least[ways[i].source] == FAR:
                total = _total(rows, ways[i], least, is_bytes)
                heapq.heappush(heap, (total, ways[i].source, i))
    return least, chosen


def _may_end(rows: Rows, q: int) -> bool:
    return rows.over[q] or any(to & POP for to, _, _ in _runs(rows, q))


def _total(rows: Rows, way: _Way, least: list[int], is_bytes: bool) -> int:
    """Return what a way takes, given what the states behind it take."""
    worst = [max(least[after] for after in rows.back[q].values()) for q in way.pushed]
    if not is_bytes:
        heights = [height + value for height, value in enumerate(worst)]
        return max([len(way.pushed) + least[way.state], *heights])
    in_string = bool(way.pushed) and way.state < STRING
    short = rows.span[way.pushed[-1]][0] if in_string else 0
    return 1 + least[way.state] + short + sum(worst)
