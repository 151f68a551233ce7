"""Byte strings as a trie of arrays, and the walk of a pushdown machine over it.

A walk reads all strings from many states at once: a frontier of (origin, state, node)
arrays goes one byte a step. So a vocabulary of 115,000 tokens takes as many NumPy calls
as its longest token has bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.automata import byte_machine
from decoding.automata.byte_machine import (
    ANY_LENGTH,
    BODY,
    CALL,
    DEAD,
    OVER,
    POP,
    STRING,
)
from models.errors import ConstraintError

MOST_PUSHES = 16  # inside one string; more are not followed


class Trie(NamedTuple):
    """Sorted byte strings, and the nodes of their prefixes, level by level.

    The children of a node are consecutive nodes, in the order of their bytes. The
    strings below it are `order[low : high]`, of which the first `here` end at it.
    """

    strings: list[bytes]
    order: np.ndarray  # int32[N]: ids, sorted by their strings
    byte: np.ndarray  # uint8[nodes]: the last byte of the node's prefix
    first: np.ndarray  # int32[nodes + 1]: the first child
    low: np.ndarray  # int32[nodes]
    high: np.ndarray  # int32[nodes]
    here: np.ndarray  # int32[nodes]


def trie(strings: Sequence[bytes], has_empty: bool = False) -> Trie:
    """Build the trie of `strings`; empty ones count only if it `has_empty` ones."""
    order = np.array(sorted(range(len(strings)), key=strings.__getitem__), np.int32)
    ranked = [strings[i] for i in order]
    lengths = np.array([len(s) for s in ranked], np.int64)
    offsets = np.cumsum(lengths) - lengths
    flat = np.frombuffer(b"".join(ranked), np.uint8)
    rank = np.arange(len(ranked))
    node = np.zeros(len(ranked), np.int64)
    bytes_ = [np.zeros(1, np.uint8)]
    parents = [np.zeros(0, np.int64)]
    lows, highs = [np.zeros(1, np.int64)], [np.array([len(ranked)])]
    heres = [np.array([int((lengths == 0).sum()) if has_empty else 0])]
    size, depth = 1, 0
    while True:
        rank = rank[lengths[rank] > depth]
        if not len(rank):
            break
        read, parent = flat[offsets[rank] + depth], node[rank]
        fresh = np.ones(len(rank), bool)
        fresh[1:] = (read[1:] != read[:-1]) | (parent[1:] != parent[:-1])
        at = np.flatnonzero(fresh)
        index = np.cumsum(fresh) - 1
        node[rank] = size + index
        depth += 1
        bytes_.append(read[at])
        parents.append(parent[at])
        lows.append(rank[at])
        highs.append(rank[np.append(at[1:], len(rank)) - 1] + 1)
        over = (lengths[rank] == depth).astype(np.int64)
        heres.append(np.add.reduceat(over, at))
        size += len(at)
    parent = np.concatenate(parents)
    # Nodes are numbered level by level, so children of later nodes come later.
    first = 1 + np.searchsorted(parent, np.arange(size + 1))
    return Trie(
        list(strings),
        order,
        np.concatenate(bytes_),
        first.astype(np.int32),
        np.concatenate(lows).astype(np.int32),
        np.concatenate(highs).astype(np.int32),
        np.concatenate(heres).astype(np.int32),
    )


def bytes_of(strings: Trie) -> np.ndarray:
    """Return the first string that is each byte alone int32[256]; -1: there is none."""
    nodes = np.arange(strings.first[0], strings.first[1])
    nodes = nodes[strings.here[nodes] > 0]
    single = np.full(256, -1, np.int32)
    single[strings.byte[nodes]] = strings.order[strings.low[nodes]]
    return single


class Ends(NamedTuple):
    """Where strings end that a state reads whole; an entry for each origin and node."""

    origin: np.ndarray  # int32[E]: index into the origins
    node: np.ndarray  # int32[E]: the strings that end there
    chars: np.ndarray  # int32[E]: characters of the string that is open at the end
    rise: np.ndarray  # int32[E]: states of the stack that finishing takes, above before
    cost: np.ndarray  # int32[E]: bytes that finishing the origin's value takes


class Returns(NamedTuple):
    """Where the origin's value ends inside strings `order[low : high]`."""

    origin: np.ndarray  # int32[E]
    low: np.ndarray  # int32[E]
    high: np.ndarray  # int32[E]
    depth: np.ndarray  # int32[E]: bytes before the value's end
    label: np.ndarray  # int32[E]
    chars: np.ndarray  # int32[E]


class Jumps(NamedTuple):
    """Where an origin calls a string's inside, within strings `order[low : high]`."""

    origin: np.ndarray  # int32[E]
    low: np.ndarray  # int32[E]
    high: np.ndarray  # int32[E]
    depth: np.ndarray  # int32[E]: bytes before the string's
    caller: np.ndarray  # int32[E]: the calling state


class _Frontier:
    """Items int32[n, 8]: rows of 32 bytes, which are what NumPy copies fastest."""

    def __init__(self, rows: np.ndarray) -> None:
        # `peak`: the greatest height so far. `top`: index of the last call.
        self.rows = rows
        self.origin, self.state, self.node, self.chars = rows.T[:4]
        self.height, self.peak, self.top = rows.T[4:7]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, at: np.ndarray) -> "_Frontier":
        """Copy the items at indices, or where a bool array holds."""
        index = at.nonzero()[0] if at.dtype == bool else at
        return _Frontier(self.rows.take(index, 0))


class _Calls:
    """The calls of a walk as a tree: that of index 0 is none."""

    def __init__(self, machine: byte_machine.ByteMachine) -> None:
        self.need = _worst(machine.need, machine.back)
        self.price = _worst(machine.cost, machine.back)
        zero = np.zeros(1, np.int32)
        # Calling state, call below, and of all calls down to it: stack, bytes.
        self.caller, self.below, self.rise, self.cost = zero, zero, zero, zero

    def push(
        self, caller: np.ndarray, top: np.ndarray, height: np.ndarray
    ) -> np.ndarray:
        """Add calls by `caller` above the calls `top`; return their indices."""
        index = len(self.caller) + np.arange(len(caller), dtype=np.int32)
        rise = np.maximum(self.rise[top], height + self.need[caller])
        self.rise = np.append(self.rise, rise.astype(np.int32))
        self.cost = np.append(self.cost, self.cost[top] + self.price[caller])
        self.caller = np.append(self.caller, caller)
        self.below = np.append(self.below, top)
        return index


class Walk:
    """The walk of `machine` over `strings` from `origins`.

    `follow` bool[256] are the bytes that some calling state can go on with: where a
    value ends before another byte, nothing is recorded. With `is_jumping`, calls of an
    unbounded string's inside by the origin's own rule are recorded and not followed:
    such strings are read alike wherever they stand. `most` bounds the steps, bytes read
    from all origins together; 0: no bound.

    Raises:
        ConstraintError: the walk takes more steps.
    """

    def __init__(
        self,
        machine: byte_machine.ByteMachine,
        strings: Trie,
        origins: np.ndarray,
        follow: np.ndarray,
        is_jumping: bool = False,
        most: int = 0,
    ) -> None:
        self.machine, self.strings, self.follow = machine, strings, follow
        self.is_jumping = is_jumping
        self.calls = _Calls(machine)
        self.stays: list[_Frontier] = []
        self.pops: list[Returns] = []
        self.jumped: list[Jumps] = []
        items = _Frontier(np.zeros((len(origins), 8), np.int32))
        items.origin[:], items.state[:] = np.arange(len(origins)), origins
        # An empty string that a state reads: nothing for a value that is over there.
        over = machine.ends[items.state]
        self._ended(items.take(over >= 0), over[over >= 0], 0)
        items = items.take(over < 0)
        self._record(items)
        depth, steps = 0, 0
        while len(items):
            source, child, to = self._live(items)
            steps += len(source)
            if most and steps > most:  # before they are copied
                raise ConstraintError(
                    f"reading the vocabulary from its {len(origins)} states takes more "
                    f"than {most} steps: make it smaller, or use a smaller vocabulary "
                    "or engine='host'"
                )
            todo = items.take(source)
            todo.node[:] = child
            items = self._step(todo, to, depth)
            self._record(items)
            depth += 1

    def _children(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for nodes, the index and the child of each of their children."""
        first = self.strings.first
        return expand(first[node], first[node + 1])

    def _live(self, items: _Frontier) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the children that can be read: the item's index, node and move."""
        source, child = self._children(items.node)
        to = self.machine.moves[items.state[source], self.strings.byte[child]]
        live = to != DEAD  # few are
        return source[live], child[live], to[live]

    def _step(self, todo: _Frontier, to: np.ndarray, depth: int) -> _Frontier:
        """Read the last byte of items, whose moves are `to`."""
        strings, machine = self.strings, self.machine
        ready: list[_Frontier] = []
        while len(todo):
            kind = to & byte_machine.KINDS
            step, call, pop = kind == 0, kind == CALL, kind == POP
            if step.any():
                ready.append(self._moved(todo.take(step), to[step], depth))
            later = []
            if call.any():
                later.append(self._called(todo.take(call), to[call] - CALL, depth))
            if pop.any():
                popped = todo.take(pop)
                label, none = to[pop] - POP, popped.height == 0
                self._returned(popped.take(none), label[none], depth)
                later.append(self._popped(popped.take(~none), label[~none]))
            if not later:
                break
            todo = _joined(later)
            to = machine.moves[todo.state, strings.byte[todo.node]]
            todo, to = todo.take(to != DEAD), to[to != DEAD]
        return _joined(ready) if ready else todo.take(np.zeros(0, np.int64))

    def _called(self, items: _Frontier, callee: np.ndarray, depth: int) -> _Frontier:
        if self.is_jumping:
            is_free = (self.machine.span[items.state] == ANY_LENGTH).all(1)
            jumps = (items.height == 0) & (callee == BODY) & is_free
            at = items.take(jumps)
            low, high = self.strings.low[at.node], self.strings.high[at.node]
            depths = np.full(len(low), depth, np.int32)
            origin, caller = at.origin.copy(), at.state.copy()
            self.jumped.append(Jumps(origin, low, high, depths, caller))
            items, callee = items.take(~jumps), callee[~jumps]
        room = items.height < MOST_PUSHES
        items, callee = items.take(room), callee[room]
        items.top[:] = self.calls.push(items.state, items.top, items.height)
        items.state[:], items.chars[:] = callee, 0
        items.height += 1
        np.maximum(items.peak, items.height, out=items.peak)
        return items

    def _popped(self, items: _Frontier, label: np.ndarray) -> _Frontier:
        caller = self.calls.caller[items.top]
        state = self.machine.back[caller, label]
        span = self.machine.span[caller]
        in_span = (span[:, 0] <= items.chars) & (items.chars <= span[:, 1])
        live = (state != DEAD) & (in_span | (items.state >= STRING))
        items.state[:], items.top[:] = state, self.calls.below[items.top]
        items.height -= 1
        return items.take(live)

    def _moved(self, items: _Frontier, to: np.ndarray, depth: int) -> _Frontier:
        """Go to states `to` behind a byte, and return from values that are over."""
        counted = (items.state == BODY) & (to != OVER)
        items.state[:] = to
        if counted.any():
            items.chars += counted
            most = self.machine.span[self.calls.caller[items.top], 1]
            items = items.take(~counted | (items.height == 0) | (items.chars <= most))
        ready = []
        while True:
            over = self.machine.ends[items.state]
            is_over = over >= 0
            if not is_over.any():
                ready.append(items)
                return _joined(ready)
            ready.append(items.take(~is_over))
            items, over = items.take(is_over), over[is_over]
            none = items.height == 0
            self._ended(items.take(none), over[none], depth + 1)
            items = self._popped(items.take(~none), over[~none])

    def _record(self, items: _Frontier) -> None:
        """Record the strings that end where `items` are."""
        self.stays.append(items.take(self.strings.here[items.node] > 0))

    def _ended(self, items: _Frontier, label: np.ndarray, depth: int) -> None:
        """Record values that are over behind the byte of `items`."""
        strings = self.strings
        here = strings.here[items.node]
        low = strings.low[items.node]
        whole = here > 0
        at = items.take(whole)
        self.pops.append(
            Returns(
                at.origin.copy(),
                low[whole],
                (low + here)[whole],
                np.full(len(at), depth, np.int32),
                label[whole].astype(np.int32),
                at.chars.copy(),
            )
        )
        source, child = self._children(items.node)
        below = items.take(source)
        below.node[:] = child
        self._returned(below, label[source], depth)

    def _returned(self, items: _Frontier, label: np.ndarray, depth: int) -> None:
        """Record values that are over before the byte of `items`."""
        live = self.follow[self.strings.byte[items.node]]
        items, label = items.take(live), label[live]
        self.pops.append(
            Returns(
                items.origin.copy(),
                self.strings.low[items.node],
                self.strings.high[items.node],
                np.full(len(label), depth, np.int32),
                label.astype(np.int32),
                items.chars.copy(),
            )
        )

    def ends(self) -> Ends:
        """Return the strings that are read whole."""
        items = _joined(self.stays)
        need, cost = self.machine.need[items.state], self.machine.cost[items.state]
        rise = np.maximum(items.peak, items.height + need)
        inside = (items.state < STRING) & (items.height > 0)
        low = self.machine.span[self.calls.caller[items.top], 0]
        cost = cost + np.where(inside, np.maximum(low - items.chars, 0), 0)
        cost = cost + self.calls.cost[items.top]
        rise = np.maximum(rise, self.calls.rise[items.top])
        return Ends(items.origin, items.node, items.chars, rise, cost)

    def returns(self) -> Returns:
        """Return the strings in which the origin's value ends."""
        return Returns(*(np.concatenate(leaves) for leaves in zip(*self.pops)))

    def jumps(self) -> Jumps:
        """Return the calls of strings that were not followed, neighbours joined."""
        empty = Jumps(*[np.zeros(0, np.int32)] * len(Jumps._fields))
        parts = Jumps(*(np.concatenate(leaves) for leaves in zip(empty, *self.jumped)))
        order = np.lexsort((parts.low, parts.caller, parts.depth, parts.origin))
        low, high = parts.low[order], parts.high[order]
        fresh = np.ones(len(order), bool)
        fresh[1:] = low[1:] != high[:-1]
        for leaf in (parts.origin, parts.depth, parts.caller):
            fresh[1:] |= leaf[order][1:] != leaf[order][:-1]
        first = np.flatnonzero(fresh)
        last = np.append(first[1:], len(order))[: len(first)] - 1
        return Jumps(*(leaf[order[first]] for leaf in parts))._replace(high=high[last])


def _worst(values: np.ndarray, back: np.ndarray) -> np.ndarray:
    """Return the greatest value of the states in which a caller goes on, int32[Q]."""
    return np.where(back != DEAD, values[back], 0).max(1).astype(np.int32)


def _joined(parts: list[_Frontier]) -> _Frontier:
    if len(parts) == 1:
        return parts[0]
    return _Frontier(np.concatenate([part.rows for part in parts]))


def expand(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for ranges [low, high), the range and the place of every element."""
    counts = (high - low).astype(np.int64)
    source = np.repeat(np.arange(len(counts)), counts)
    start = np.cumsum(counts) - counts
    return source, np.arange(len(source)) - start[source] + low[source]
