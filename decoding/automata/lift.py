"""Lift of a pushdown machine over bytes to the tokens of a vocabulary.

In a state whose stack is unknown a token is one of three things: read whole (it stays
in the value or in values that it opens), it *returns* (the value ends inside it, with a
label, and the calling state must read the *rest* of its bytes), or it is dead. What a
calling state makes of each rest is lifted the same way, so a mask needs no bytes:

    fixed[q]   packed words: the tokens that q reads whole
    own[q]     the same as a list, where they are few
    ends[q]    (token, pair) where a pair is (label, rest)
    code[r]    for each rest: read whole, dead, or (label, rest) again, in a state r
               where a caller goes on

Everything here runs on the host, in NumPy, once per grammar and tokenizer.
"""

from typing import NamedTuple

import numpy as np

from decoding.automata.byte_machine import DEAD, STRING, ByteMachine
from decoding.automata.rests import (
    PUSHES,
    SHIFT,
    WHOLE,
    Codes,
    Rests,
    codes,
    most,
)
from decoding.automata.string_insides import Insides
from decoding.automata.token_trie import Jumps, Trie, Walk, bytes_of, expand

FEW = 256  # tokens of a list; a state that reads more whole has words


class Lists(NamedTuple):
    """Lists by state: that of q is `values[at[q, 0] : at[q, 0] + at[q, 1]]`."""

    at: np.ndarray  # int32[Q, 2]: first, length
    values: np.ndarray  # int32[X, columns]


class Lifted(NamedTuple):
    """A machine over tokens, on the host."""

    machine: ByteMachine
    row: np.ndarray  # int32[Q]: of `words`; 0: none
    words: np.ndarray  # uint32[M, W]: tokens read whole
    plain: np.ndarray  # uint32[M, W]: of these, those that need no more of the stack
    own: Lists  # token, whether it is plain
    returns: Lists  # token, index of its pair in the state's list
    pairs: Lists  # label, rest
    rise: np.ndarray  # int32[Q]: what a whole token may take of the stack, at most
    grow: np.ndarray  # int32[Q]: tokens that finishing takes behind one, at most
    cost: np.ndarray  # int32[Q, 2]: tokens that finishing takes, and the first of them
    code_row: np.ndarray  # int32[Q]: of `code`; 0: no caller goes on here
    code: np.ndarray  # int32[T, U]: of each rest
    rest_rise: np.ndarray  # int32[Q]: `rise` of rests
    rest_grow: np.ndarray  # int32[Q]: `grow` of rests
    classes: np.ndarray  # uint8[256]: bytes with the same moves
    steps: np.ndarray  # int32[Q, C]: the machine's moves by class
    jumps: Lists  # the tokens of the text that must follow


def no_lists(states: int) -> Lists:
    """Return empty lists of one column."""
    return Lists(np.zeros((states, 2), np.int32), np.zeros((0, 1), np.int32))


def _lists(states: int, state: np.ndarray, values: np.ndarray) -> Lists:
    """Group `values` [E, columns] by `state`, equal lists once; they come sorted."""
    at = np.zeros((states, 2), np.int32)
    bounds = np.searchsorted(state, np.arange(states + 1))
    known: dict[bytes, int] = {}
    parts, size = [np.zeros((0, values.shape[1]), np.int32)], 0
    for q in np.unique(state).tolist():
        part = np.ascontiguousarray(values[bounds[q] : bounds[q + 1]])
        key = part.tobytes()
        if key not in known:
            known[key] = size
            parts.append(part)
            size += len(part)
        at[q] = known[key], len(part)
    return Lists(at, np.concatenate(parts).astype(np.int32))


def pack(allowed: np.ndarray) -> np.ndarray:
    """Pack bool[..., V] to words uint32[..., W], the least bit first."""
    room = -allowed.shape[-1] % 32
    padded = np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, room)])
    return np.packbits(padded, -1, bitorder="little").view(np.uint32)


class _Tokens(NamedTuple):
    """Tokens that states read whole, an entry for each pair."""

    state: np.ndarray
    token: np.ndarray
    is_plain: np.ndarray


def lift(
    machine: ByteMachine,
    vocabulary: Trie,
    vocab_size: int,
    rests_: Rests,
    begin: np.ndarray,
    walk: Walk,
    insides: Insides | None = None,
) -> Lifted:
    """Lift the states `begin` of the machine, which `walk` walked over `vocabulary`.

    A walk that jumped needs the `insides` of strings.
    """
    size = len(machine.ends)
    whole = walk.ends()
    source, at = expand(
        vocabulary.low[whole.node], (vocabulary.low + vocabulary.here)[whole.node]
    )
    token, state = vocabulary.order[at], begin[whole.origin[source]]
    is_plain = whole.rise[source] <= machine.need[state]
    rise, grow = most(size, state, whole.rise[source], whole.cost[source])
    tokens = _Tokens(state, token, is_plain)
    of_rests = codes(machine, rests_)
    ended = _ended(vocabulary, rests_, begin, walk)
    rows = _Rows(size, vocab_size, vocabulary)
    if insides is not None:
        jumps = walk.jumps()
        behind = _behind(machine, vocabulary, rests_, of_rests, begin, jumps, insides)
        tokens = _Tokens(*map(np.concatenate, zip(tokens, behind.tokens)))
        ended = tuple(map(np.concatenate, zip(ended, behind.ended)))
        rise, grow = np.maximum(rise, behind.rise), np.maximum(grow, behind.grow)
        rows.jump(machine, begin, walk, jumps)
    few = rows.fill(_sorted(tokens), insides)
    returns, pairs = _returning(size, *ended)
    classes, moves = steps(machine.moves)
    words = np.stack(rows.rows)
    return Lifted(
        machine,
        rows.row,
        words[:, 0],
        words[:, 1],
        _lists(size, few.state, np.stack([few.token, few.is_plain], 1)),
        returns,
        pairs,
        rise,
        grow,
        _cost(machine, vocabulary),
        *of_rests,
        classes,
        moves,
        no_lists(size),
    )


def _sorted(tokens: _Tokens) -> _Tokens:
    """Sort by state and token, of which there are at most 2^31 each."""
    keys = tokens.state.astype(np.int64) << 32 | tokens.token.astype(np.int64) << 1
    keys = np.sort(keys | tokens.is_plain)
    token = (keys >> 1 & (1 << 31) - 1).astype(np.int32)
    return _Tokens((keys >> 32).astype(np.int32), token, (keys & 1).astype(bool))


def _cost(machine: ByteMachine, vocabulary: Trie) -> np.ndarray:
    """Return what finishing takes, a token a byte, and the first one; -1: none."""
    first = np.maximum(bytes_of(vocabulary), 0)[machine.exit]
    exits = np.where(machine.exit < 0, machine.exit, first)
    return np.stack([machine.cost, exits], 1).astype(np.int32)


def steps(moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each byte uint8[256], and moves [Q, 256] by class."""
    columns = np.ascontiguousarray(moves.T)
    known: dict[bytes, int] = {}
    classes = [known.setdefault(column.tobytes(), len(known)) for column in columns]
    first = [classes.index(kind) for kind in range(len(known))]
    return np.array(classes, np.uint8), np.ascontiguousarray(moves[:, first])


class _Rows:
    """Packed rows of tokens that states read whole, equal ones once; row 0 is empty."""

    def __init__(self, size: int, vocab_size: int, vocabulary: Trie) -> None:
        self.row = np.zeros(size, np.int32)
        self.rows = [np.zeros((2, -(-vocab_size // 32)), np.uint32)]
        self.known: dict[bytes, int] = {}
        # Of tokens in the sorted order; those that have none share the last.
        count = len(vocabulary.order)
        self.rank = np.full(vocab_size, count)
        self.rank[vocabulary.order] = np.arange(count)
        self.found = np.zeros((2, count + 1), bool)  # a row and its plain tokens
        # Tokens that end inside strings: their ranges, and the first range of a state.
        self.ranges = np.zeros((0, 4), np.int32)  # low, high, depth, is_plain
        self.first = np.zeros(size + 1, np.int64)

    def jump(
        self, machine: ByteMachine, begin: np.ndarray, walk: Walk, jumps: Jumps
    ) -> None:
        """Note the tokens that end inside strings which states enter."""
        state = begin[jumps.origin]
        fits = np.maximum(1, walk.calls.need[jumps.caller]) <= machine.need[state]
        order = np.argsort(state, kind="stable")
        ranges = np.stack([jumps.low, jumps.high, jumps.depth, fits], 1)
        self.ranges = np.ascontiguousarray(ranges[order])
        self.first = np.searchsorted(state[order], np.arange(len(self.row) + 1))

    def fill(self, tokens: _Tokens, insides: Insides | None) -> _Tokens:
        """Make the rows of states that read many tokens; return the others' tokens."""
        size = len(self.row)
        bounds = np.searchsorted(tokens.state, np.arange(size + 1))
        many = (np.diff(bounds) > FEW) | (np.diff(self.first) > 0)
        pairs = np.stack([tokens.token, tokens.is_plain], 1).astype(np.int32)
        made: dict[tuple[bytes, bytes], int] = {}
        for q in np.flatnonzero(many).tolist():
            own = pairs[bounds[q] : bounds[q + 1]]
            ranges = self.ranges[self.first[q] : self.first[q + 1]]
            key = own.tobytes(), ranges.tobytes()
            if key not in made:
                made[key] = self._made(own, ranges, insides)
            self.row[q] = made[key]
        return _Tokens(*(leaf[~many[tokens.state]] for leaf in tokens))

    def _made(
        self, own: np.ndarray, ranges: np.ndarray, insides: Insides | None
    ) -> int:
        """Return the row of some tokens, and of those that end inside strings."""
        plain = ranges[ranges[:, 3] > 0]
        is_plain = own[:, 1] > 0
        is_same = len(plain) == len(ranges) and bool(is_plain.all())
        found = self.found[: 2 - is_same]
        found[:] = False
        found[0, self.rank[own[:, 0]]] = True
        if not is_same:
            found[1, self.rank[own[is_plain, 0]]] = True
        for marked, some in zip(found, (ranges, plain)):
            if len(some):
                assert insides is not None
                insides.mark(marked[:-1], some)
        if (found[0] == found[-1]).all():
            found = found[:1]
        row = self.known.setdefault(np.packbits(found).tobytes(), len(self.rows))
        if row == len(self.rows):
            words = pack(np.stack([x.take(self.rank, mode="clip") for x in found]))
            self.rows.append(np.broadcast_to(words, (2, words.shape[1])))
        return row


class _Behind(NamedTuple):
    """Tokens that enter a string, and leave it again."""

    tokens: _Tokens
    ended: tuple  # state, token, code
    rise: np.ndarray
    grow: np.ndarray


def _behind(
    machine: ByteMachine,
    vocabulary: Trie,
    rests_: Rests,
    of_rests: Codes,
    begin: np.ndarray,
    jumps: Jumps,
    insides: Insides,
) -> _Behind:
    """Read on behind the strings that end inside tokens, where their callers go on."""
    of, rank, end = insides.ends.within(jumps.low, jumps.high, jumps.depth)
    token = vocabulary.order[rank]
    rest = rests_.places.rest(token, end)
    of, token, rest = of[rest >= 0], token[rest >= 0], rest[rest >= 0]
    state = begin[jumps.origin[of]]
    after = machine.back[jumps.caller[of], 0]
    code = of_rests.code[of_rests.row[after], rest]
    is_whole = (code == WHOLE) | (code == PUSHES)
    fits = np.maximum(1, machine.need[after]) <= machine.need[state]
    plain = fits & (code == WHOLE)
    size = len(machine.ends)
    # The call takes a place of the stack; what the rest takes is bounded by its state.
    origin, caller = begin[jumps.origin], jumps.caller
    inner = np.where(machine.back[caller] != DEAD, machine.back[caller], 0)
    worst = np.maximum(machine.need[inner], of_rests.rise[inner]).max(1)
    price = np.maximum(insides.cost + machine.cost[inner], of_rests.grow[inner]).max(1)
    rise, grow = most(size, origin, np.maximum(1, worst), price)
    ended = code >= 0
    return _Behind(
        _Tokens(state[is_whole], token[is_whole], plain[is_whole]),
        (state[ended], token[ended], code[ended].astype(np.int64)),
        rise,
        grow,
    )


def _ended(
    vocabulary: Trie, rests_: Rests, begin: np.ndarray, walk: Walk
) -> tuple[np.ndarray, ...]:
    """Return states, tokens inside which their values end, and codes of the rests."""
    ended = walk.returns()
    of, rank, rest = rests_.inside.within(ended.low, ended.high, ended.depth)
    code = ended.label[of].astype(np.int64) << SHIFT | rest
    return begin[ended.origin[of]], vocabulary.order[rank], code


def _returning(
    size: int, state: np.ndarray, token: np.ndarray, code: np.ndarray
) -> tuple[Lists, Lists]:
    """List the tokens inside which a state's value ends, and their distinct pairs."""
    held = state.astype(np.int64) << 32 | code
    distinct, index = np.unique(held, return_inverse=True)
    holder = (distinct >> 32).astype(np.int32)
    first = np.searchsorted(holder, np.arange(size))
    number = index.reshape(-1) - first[state]
    order = np.lexsort((token, state))
    values = np.stack([token, number], 1).astype(np.int32)
    codes = (distinct & (1 << 32) - 1).astype(np.int32)
    return (
        _lists(size, state[order], values[order]),
        _lists(size, holder, codes[:, None]),
    )


def widths(
    vocabulary: Trie, vocab_size: int, begin: np.ndarray, walk: Walk
) -> np.ndarray:
    """Return the characters that tokens add to a string, uint8[STRING, V].

    Of tokens in which the string ends, those before its end; 255 is the most.
    """
    whole, ended = walk.ends(), walk.returns()
    count = np.zeros((STRING, vocab_size), np.uint8)
    low = vocabulary.low[whole.node]
    source, at = expand(low, low + vocabulary.here[whole.node])
    values = np.minimum(whole.chars[source], 255)
    count[begin[whole.origin[source]], vocabulary.order[at]] = values
    source, at = expand(ended.low, ended.high)
    values = np.minimum(ended.chars[source], 255)
    count[begin[ended.origin[source]], vocabulary.order[at]] = values
    return count
