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
    """One byte from a state, and where it leads; or a call, with whatever it reads."""

    source: int
    byte: int  # -1: that of the call
    state: int  # behind the byte; of a call, where it begins
    pushed: tuple[int, ...]  # calling states


class _Reads(NamedTuple):
    """What bytes do in a state."""

    read: list[tuple[int, tuple[int, ...], int]]  # a way's state, calls, least byte
    popped: list[tuple[int, int, int]]  # label, and bytes [low, high) read by a caller


def finishing(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `need`, `cost` and `exit` of each state, int32[Q]."""
    runs = [list(_runs(rows, q)) for q in range(len(rows.over))]
    may_end = [
        over or any(to & POP for to, _, _ in own) for over, own in zip(rows.over, runs)
    ]
    ways = list(_ways(rows, runs, may_end))
    users: list[list[int]] = [[] for _ in rows.over]
    counts = []  # of the states that a way depends on
    for i, (_, _, state, pushed) in enumerate(ways):
        if pushed:
            taken = {state, *(t for q in pushed for t in rows.back[q].values())}
            counts.append(len(taken))
            for behind in taken:
                users[behind].append(i)
        else:
            counts.append(1)
            users[state].append(i)
    parts = rows, ways, users, counts, may_end
    need, _ = _least(*parts, is_bytes=False)
    cost, chosen = _least(*parts, is_bytes=True)
    exits = [_exit(ways, chosen, q) for q in range(len(rows.over))]
    return np.array(need, np.int32), np.array(cost, np.int32), np.array(exits, np.int32)


def _exit(ways: list[_Way], chosen: list[int], q: int) -> int:
    """Return the byte with which a state finishes; -1: none."""
    while chosen[q] >= 0:
        way = ways[chosen[q]]
        if way.byte >= 0:
            return way.byte
        q = way.state
    return -1


def _runs(rows: Rows, q: int) -> Iterator[tuple[int, int, int]]:
    """Yield (move, first byte, bytes) of the runs of a state that it can read."""
    byte = 0
    for i in range(rows.firsts[q], rows.firsts[q + 1]):
        if rows.values[i] != DEAD:
            yield rows.values[i], byte, rows.lengths[i]
        byte += rows.lengths[i]


def _bytes(runs: list[tuple[int, int, int]]) -> int:
    """Return the bytes of some runs, as the bits of an int."""
    return sum(((1 << count) - 1) << first for _, first, count in runs)


def _string_costs(runs: list[list[tuple[int, int, int]]], may_end: list[bool]) -> list:
    """Return the bytes that finishing takes in each state of STRING."""
    costs = [0 if ends else FAR for ends in may_end[:STRING]]
    before: list[int] = []
    while costs != before:
        before = costs.copy()
        for q, cost in enumerate(before):
            if cost:
                costs[q] = min([1 + costs[to] for to, _, _ in runs[q]], default=FAR)
    return costs


def _ways(
    rows: Rows, runs: list[list[tuple[int, int, int]]], may_end: list[bool]
) -> Iterator[_Way]:
    """Yield the ways of all states, each once, with its least byte.

    A call is one way if its value must read a byte, and may read any that it can. Of a
    string, whose states take no calls, the shortest way is enough. Other calls are
    followed to what they read.
    """
    known: dict[tuple[int, int, int], _Reads] = {}
    every: dict[int, int] = {}  # bytes that a called state can read
    costs = _string_costs(runs, may_end)

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

    def is_one(inner: int, own: list[tuple[int, int, int]]) -> bool:
        """Whether a call with the bytes of `own` is one way."""
        if may_end[inner]:
            return False
        if inner not in every:
            every[inner] = _bytes(runs[inner])
        return not every[inner] & ~_bytes(own)

    for q, over in enumerate(rows.over):
        if over:
            continue
        leads: dict[tuple[int, tuple[int, ...]], int] = {}
        calls: set[int] = set()
        for to, first, _ in runs[q]:
            if not to & KINDS:
                leads.setdefault((to, ()), first)
            elif to & CALL and to not in calls:
                calls.add(to)
                own = [run for run in runs[q] if run[0] == to]
                if is_one(to - CALL, own):
                    leads[to - CALL, (q,)] = -1
                    continue
                found = [x for _, low, n in own for x in reads(q, low, low + n).read]
                if to - CALL < STRING:
                    found = sorted(found, key=lambda read: costs[read[0]])[:1]
                for state, pushed, byte in found:
                    way = state, pushed
                    leads[way] = min(byte, leads.get(way, byte))
        yield from (_Way(q, byte, *way) for way, byte in leads.items())


def _least(
    rows: Rows,
    ways: list[_Way],
    users: list[list[int]],
    counts: list[int],
    may_end: list[bool],
    is_bytes: bool,
) -> tuple[list[int], list[int]]:
    """Return the least bytes, or else calling states, and the way taken; -1: none.

    Of equal ways the first is taken.
    """
    least, chosen = [FAR] * len(rows.over), [-1] * len(rows.over)
    left = counts.copy()
    waiting = {0: [(q, -1) for q, ends in enumerate(may_end) if ends]}
    values = [0]
    while values:
        value = heapq.heappop(values)
        for state, way_in in waiting[value]:  # grows while it is read
            if least[state] != FAR:
                if least[state] == value:
                    chosen[state] = min(chosen[state], way_in)
                continue
            least[state], chosen[state] = value, way_in
            for i in users[state]:
                left[i] -= 1
                if left[i] or least[(way := ways[i]).source] != FAR:
                    continue
                if way.pushed:
                    total = _total(rows, way, least, is_bytes)
                else:
                    total = value + is_bytes
                if total not in waiting:
                    waiting[total] = []
                    heapq.heappush(values, total)
                waiting[total].append((way.source, i))
    return least, chosen


def _total(rows: Rows, way: _Way, least: list[int], is_bytes: bool) -> int:
    """Return what a way takes, given what the states behind it take."""
    worst = [max([least[t] for t in rows.back[q].values()]) for q in way.pushed]
    if not is_bytes:
        return max(
            len(way.pushed) + least[way.state],
            max([height + value for height, value in enumerate(worst)]),
        )
    short = rows.span[way.pushed[-1]][0] if way.state < STRING else 0
    return (way.byte >= 0) + least[way.state] + short + sum(worst)
