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


class _Reads(NamedTuple):
    """What bytes do in a state."""

    read: list[tuple[int, tuple[int, ...], int]]  # a way's state, calls, least byte
    popped: list[tuple[int, int, int]]  # label, and bytes [low, high) read by a caller


def finishing(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `need`, `cost` and `exit` of each state, int32[Q]."""
    ways = list(_ways(rows))
    users: list[list[int]] = [[] for _ in rows.over]
    counts = []  # of the states that a way depends on
    for i, way in enumerate(ways):
        taken = {way.state}
        for q in way.pushed:
            taken.update(rows.back[q].values())
        counts.append(len(taken))
        for state in taken:
            users[state].append(i)
    need, _ = _least(rows, ways, users, counts, is_bytes=False)
    cost, chosen = _least(rows, ways, users, counts, is_bytes=True)
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
    runs = [list(_runs(rows, q)) for q in range(len(rows.over))]
    known: dict[tuple[int, int, int], _Reads] = {}

    def reads(at: int, low: int, high: int) -> _Reads:
        """Follow calls and returns until bytes of [low, high) are read."""
        key = at, low, high
        if key in known:
            return known[key]
        read: list[tuple[int, tuple[int, ...], int]] = []
        popped: list[tuple[int, int, int]] = []
        for to, first, count in runs[at]:
            begin, end = max(low, first), min(high, first + count)
            if begin >= end:
                continue
            if not to & KINDS:
                read.append((to, (), begin))
            elif to & POP:
                popped.append((to - POP, begin, end))
            else:
                inner = reads(to - CALL, begin, end)
                read += [(q, (at, *pushed), byte) for q, pushed, byte in inner.read]
                for label, begin, end in inner.popped:
                    if (after := rows.back[at].get(label)) is not None:
                        behind = reads(after, begin, end)
                        read += behind.read
                        popped += behind.popped
        known[key] = _Reads(read, popped)
        return known[key]

    for q, over in enumerate(rows.over):
        if over:
            continue
        leads: dict[tuple[int, tuple[int, ...]], int] = {}
        for state, pushed, byte in reads(q, 0, 256).read:
            way = state, pushed
            leads[way] = min(byte, leads.get(way, byte))
        yield from (_Way(q, byte, *way) for way, byte in leads.items())


def _least(
    rows: Rows,
    ways: list[_Way],
    users: list[list[int]],
    counts: list[int],
    is_bytes: bool,
) -> tuple[list[int], list[int]]:
    """Return the least bytes, or else calling states, and the way taken; -1: none."""
    least, chosen = [FAR] * len(rows.over), [-1] * len(rows.over)
    left = counts.copy()
    heap = [(0, q, -1) for q in range(len(rows.over)) if _may_end(rows, q)]
    heapq.heapify(heap)
    while heap:
        value, state, way_in = heapq.heappop(heap)
        if least[state] != FAR:
            continue
        least[state], chosen[state] = value, way_in
        for i in users[state]:
            left[i] -= 1
            if left[i]:
                continue
            way = ways[i]
            if least[way.source] == FAR:
                if way.pushed:
                    total = _total(rows, way, least, is_bytes)
                else:
                    total = value + is_bytes
                heapq.heappush(heap, (total, way.source, i))
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
