"""Rests: the ends of tokens inside which a value ends, for its calling states.

A rest is read in the state where a caller goes on. There it is read whole, or it is
dead, or the caller's value ends inside it, too, and what is left is a rest again. So
what may follow a value takes a few numbers for each rest and state, and no bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding.automata import token_trie
from decoding.automata.byte_machine import DEAD, STRING, ByteMachine
from decoding.automata.token_levels import Levels, levels
from decoding.automata.token_trie import Trie, Walk, expand

NONE, WHOLE, PUSHES = -2, -1, -3  # codes of a rest: dead, read whole, and it pushes
SHIFT = 16  # a code of a rest that returns is label << SHIFT | rest
LONGEST = 1024  # bytes of a token


class Places(NamedTuple):
    """The rest behind each byte of some strings, and behind their last."""

    offset: np.ndarray  # int64[N + 1]: of a string's places
    ids: np.ndarray  # int32[places]: the rest; -1: none that counts

    def rest(self, string: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Return the rest behind `depth` bytes of each string; -1: none."""
        return self.ids[self.offset[string] + depth]


class Rests(NamedTuple):
    """The ends of tokens with which some calling state can go on; 0 is empty."""

    strings: list[bytes]
    trie: Trie
    places: Places  # of tokens
    inner: Places  # of the rests themselves
    inside: Levels  # of tokens, the rests that are `places`


class Codes(NamedTuple):
    """What calling states make of the rests."""

    row: np.ndarray  # int32[Q]
    code: np.ndarray  # int32[T, U]
    rise: np.ndarray  # int32[Q]
    grow: np.ndarray  # int32[Q]


def following(machine: ByteMachine) -> tuple[np.ndarray, np.ndarray]:
    """Return the states where callers go on, and the bytes bool[256] they can read."""
    after = np.unique(machine.back[machine.back != DEAD]).astype(np.int32)
    return after, (machine.moves[after] != DEAD).any(0)


def _places(strings: Sequence[bytes], number: dict[bytes, int]) -> Places:
    """Return the rests inside `strings`: the suffixes that are in `number`."""
    longest = max(map(len, number))
    sizes = np.array([len(string) + 1 for string in strings], np.int64)
    offset = np.append(0, np.cumsum(sizes))
    ids = np.full(offset[-1], -1, np.int32)
    for string, last in zip(strings, (offset[1:] - 1).tolist()):
        size = len(string)
        for depth in range(max(0, size - longest), size + 1):
            rest = number.get(string[depth:])
            if rest is not None:
                ids[last - size + depth] = rest
    return Places(offset, ids)


def collect(machine: ByteMachine, vocabulary: Trie, walk: Walk) -> Rests:
    """Collect the rests of the vocabulary's tokens with which the machine can go on.

    A rest counts if some calling state reads it whole, or ends its own value inside it
    with a rest that counts.
    """
    after, follow = following(machine)
    ended = walk.returns()
    source, at = expand(ended.low, ended.high)
    places = np.unique(
        vocabulary.order[at].astype(np.int64) * LONGEST + ended.depth[source]
    )
    suffixes = {b""}
    for place in places.tolist():
        string = vocabulary.strings[place // LONGEST]
        for depth in range(place % LONGEST, len(string)):
            if follow[string[depth]]:
                suffixes.add(string[depth:])
    ordered = sorted(suffixes, key=lambda rest: (len(rest), rest))
    every = token_trie.trie(ordered, has_empty=True)
    number = {rest: i for i, rest in enumerate(ordered)}
    counts = np.zeros(len(ordered), bool)
    counts[0] = True
    if len(after):
        again = Walk(machine, every, after, follow)
        nodes = np.unique(again.ends().node)
        _, at = expand(every.low[nodes], (every.low + every.here)[nodes])
        counts[every.order[at]] = True
        inside = again.returns()
        source, at = expand(inside.low, inside.high)
        pairs = {
            (rest, number.get(ordered[rest][depth:], -1))
            for rest, depth in zip(
                every.order[at].tolist(), inside.depth[source].tolist()
            )
        }
        # Shorter rests come first, so one pass settles all.
        for rest, then in sorted(pairs):
            counts[rest] |= then >= 0 and then != rest and counts[then]
    strings = [rest for rest, good in zip(ordered, counts) if good]
    number = {rest: i for i, rest in enumerate(strings)}
    of_tokens = _places(vocabulary.strings, number)
    return Rests(
        strings,
        token_trie.trie(strings, has_empty=True),
        of_tokens,
        _places(strings, number),
        _inside(vocabulary, of_tokens),
    )


def _inside(vocabulary: Trie, places: Places) -> Levels:
    """Sort the rests inside tokens."""
    place = np.flatnonzero(places.ids >= 0)
    token = np.searchsorted(places.offset, place, "right") - 1
    rank = np.full(len(vocabulary.strings), -1)
    rank[vocabulary.order] = np.arange(len(vocabulary.order))
    is_read = rank[token] >= 0
    place, token = place[is_read], token[is_read]
    return levels(place - places.offset[token], rank[token], places.ids[place])


def origins(machine: ByteMachine) -> np.ndarray:
    """Return the states in which a token may begin, int32[...], but for STRING's."""
    states = np.arange(STRING, len(machine.ends), dtype=np.int32)
    return states[machine.ends[STRING:] < 0]


def most(size: int, state: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    """Return the greatest of each kind of values by state, int32[size]; 0: none."""
    most = []
    for value in values:
        top = np.zeros(size, np.int32)
        np.maximum.at(top, state, value)
        most.append(top)
    return most


def codes(machine: ByteMachine, rests_: Rests) -> Codes:
    """Return the row of each state where callers go on, codes, `rise` and `grow`."""
    after, follow = following(machine)
    size = len(machine.ends)
    row = np.zeros(size, np.int32)
    row[after] = 1 + np.arange(len(after))
    code = np.full((len(after) + 1, len(rests_.strings)), NONE, np.int32)
    if not len(after):
        zero = np.zeros(size, np.int32)
        return Codes(row, code, zero, zero)
    walk = Walk(machine, rests_.trie, after, follow)
    whole = walk.ends()
    low = rests_.trie.low[whole.node]
    source, at = expand(low, low + rests_.trie.here[whole.node])
    rest, state = rests_.trie.order[at], after[whole.origin[source]]
    pushes = whole.rise[source] > machine.need[state]
    code[row[state], rest] = np.where(pushes, PUSHES, WHOLE)
    rise, grow = most(size, state, whole.rise[source], whole.cost[source])
    ended = walk.returns()
    source, at = expand(ended.low, ended.high)
    rest = rests_.trie.order[at]
    then = rests_.inner.rest(rest, ended.depth[source])
    good = then >= 0
    source, rest, then = source[good], rest[good], then[good]
    code[row[after[ended.origin[source]]], rest] = ended.label[source] << SHIFT | then
    return Codes(row, code, rise, grow)
