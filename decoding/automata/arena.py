"""Many grammars in one set of tables, so that rows differ by their first state alone.

Every length is a power of two: batches of grammars of like size share one program. The
states of a grammar keep their numbers while it is held, since rows hold them; all else
is placed anew whenever the tables are made.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoding.automata import machine, token_trie
from decoding.automata.byte_machine import DEAD, KINDS, POP, STRING
from decoding.automata.lift import Lifted, Lists, first_bytes, pack
from decoding.automata.machine import FIRST, Tables
from decoding.automata.rests import NONE

# Of every length, of the states, of their moves: few programs exist.
LEAST, STATES, MOVES = 64, 256, 4096
BASE = FIRST + STRING  # the first state of a grammar


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that a grammar may use; specials and EOS have no bytes."""

    tokens: list[bytes]
    size: int  # V
    eos: tuple[int, ...]

    @functools.cached_property
    def trie(self) -> token_trie.Trie:
        return token_trie.trie(self.tokens)


class Strings(NamedTuple):
    """STRING over tokens, which all grammars share."""

    lifted: Lifted  # its states are the first ones; the others are not used
    width: np.ndarray  # uint8[STRING, V]


def room(size: int, least: int = LEAST) -> int:
    """Return the power of two that `size` entries are padded to."""
    return max(least, 1 << max(size - 1, 0).bit_length())


def padded(values: np.ndarray, least: int = LEAST) -> np.ndarray:
    """Pad the first axis of `values` with zeros to a power of two."""
    more = room(len(values), least) - len(values)
    return np.pad(values, [(0, more)] + [(0, 0)] * (values.ndim - 1))


class _Slab(NamedTuple):
    base: int  # the absolute state of its first state behind STRING
    lifted: Lifted

    @property
    def size(self) -> int:
        return len(self.lifted.machine.ends) - STRING

    @property
    def start(self) -> int:
        return int(self.states(np.array(self.lifted.machine.start)))

    def states(self, values: np.ndarray) -> np.ndarray:
        """Return absolute states; negative ones stay."""
        inner = np.where(values < STRING, FIRST + values, self.base + values - STRING)
        return np.where(values < 0, values, inner).astype(np.int32)

    def moves(self, values: np.ndarray) -> np.ndarray:
        """Return absolute moves."""
        kind = values & KINDS
        inner = self.states(values & ~KINDS) | kind
        return np.where((values == DEAD) | (kind == POP), values, inner)


class Arena:
    """Grammars of one vocabulary, lifted, and their tables.

    Without `strings` none of them may call STRING.
    """

    def __init__(self, vocabulary: Vocabulary, strings: Strings | None) -> None:
        self.vocabulary, self.strings = vocabulary, strings
        self.slabs: list[_Slab] = []
        self._tables: Tables | None = None

    def add(self, lifted: Lifted) -> int:
        """Place a grammar in the first gap that holds it; return its first state.

        Texts begin in that state, which stays the same while the grammar is held.
        """
        size = len(lifted.machine.ends) - STRING
        base = BASE
        for slab in sorted(self.slabs, key=lambda slab: slab.base):
            if slab.base - base >= size:
                break
            base = slab.base + slab.size
        slab = _Slab(base, lifted)
        self.slabs.append(slab)
        self._tables = None
        return slab.start

    def drop(self, start: int) -> None:
        """Give up the grammar whose texts begin in state `start`."""
        self.slabs = [slab for slab in self.slabs if slab.start != start]
        self._tables = None

    def tables(self) -> Tables:
        """Return the tables of all grammars that are held."""
        if self._tables is None:
            self._tables = _tables(self.vocabulary, self.strings, self.slabs)
        return self._tables


class _Pile:
    """Lists of several grammars, one behind the other."""

    def __init__(self, states: int, columns: int) -> None:
        self.at = np.zeros((states, 2), np.int32)
        self.parts = [np.zeros((0, columns), np.int32)]
        self.size = 0

    def put(self, states: slice, lists: Lists, of: slice) -> None:
        at = lists.at[of]
        self.at[states] = np.where(at[:, 1:] > 0, at + [self.size, 0], 0)
        self.parts.append(lists.values)
        self.size += len(lists.values)

    def lists(self) -> tuple[machine.Lists, int]:
        """Return the lists, and the room of the longest one."""
        most = room(int(self.at[:, 1].max(initial=0)), 8)
        values = np.concatenate(self.parts)
        values = np.pad(values, [(0, most), (0, 0)])
        device: Any = machine.Lists(self.at, padded(values))  # type: ignore[arg-type]
        return device, most


def _tables(
    vocabulary: Vocabulary, strings: Strings | None, slabs: Sequence[_Slab]
) -> Tables:
    size = room(max([BASE, *(slab.base + slab.size for slab in slabs)]), STATES)
    free_words = np.zeros((2, -(-vocabulary.size // 32)), np.uint32)
    free_words[1] = pack(np.ones(vocabulary.size, bool))
    row, code_row = np.zeros(size, np.int32), np.zeros(size, np.int32)
    row[machine.FREE] = 1
    ends, final = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    labels = max([1, *(slab.lifted.machine.back.shape[1] for slab in slabs)])
    back = np.full((size, room(labels, 1)), DEAD, np.int32)
    span = np.zeros((size, 2), np.int32)
    rise, grow, cost, offset = (np.zeros((size, 2), np.int32) for _ in range(4))
    own, returns, pairs = _Pile(size, 2), _Pile(size, 2), _Pile(size, 1)
    blocks = [(slab.base, slice(STRING, None), slab) for slab in slabs]
    width = np.zeros((STRING, vocabulary.size), np.uint8)
    if strings is not None:
        blocks.insert(0, (FIRST, slice(0, STRING), _Slab(BASE, strings.lifted)))
        width = strings.width
    rests = room(max([0, *(slab.lifted.code.shape[1] for _, _, slab in blocks)]))
    fixed, plain = [free_words], [free_words]
    codes = [np.full((1, rests), NONE, np.int32)]
    classes, moves = [np.zeros(256, np.uint8)], [np.full(1, DEAD, np.int32)]
    num_words, num_codes, num_moves = 2, 1, 1
    for base, of, slab in blocks:
        lifted = slab.lifted
        at = slice(base, base + len(lifted.row[of]))
        row[at] = np.where(lifted.row[of] > 0, lifted.row[of] + num_words - 1, 0)
        held = lifted.code_row[of]
        code_row[at] = np.where(held > 0, held + num_codes - 1, 0)
        ends[at], final[at] = lifted.machine.ends[of], lifted.machine.final[of]
        after = slab.states(lifted.machine.back[of])
        back[at, : after.shape[1]] = after
        span[at] = lifted.machine.span[of]
        rise[at] = np.stack([lifted.rise[of], lifted.rest_rise[of]], 1)
        grow[at] = np.stack([lifted.grow[of], lifted.rest_grow[of]], 1)
        cost[at] = lifted.cost[of]
        own.put(at, lifted.own, of)
        returns.put(at, lifted.returns, of)
        pairs.put(at, lifted.pairs, of)
        fixed.append(lifted.words[1:])
        plain.append(lifted.plain[1:])
        num_words += len(lifted.words) - 1
        codes.append(_wide(lifted.code[1:], rests))
        num_codes += len(lifted.code) - 1
        steps = slab.moves(lifted.steps[of])
        offset[at, 0] = num_moves + steps.shape[1] * np.arange(len(steps))
        offset[at, 1] = len(classes)
        classes.append(lifted.classes)
        moves.append(steps.reshape(-1))
        num_moves += steps.size
    lengths = np.array([len(token) for token in vocabulary.tokens], np.int64)
    first = np.full(vocabulary.size + 1, lengths.sum(), np.int32)
    first[: len(lengths)] = np.cumsum(lengths) - lengths
    flat = np.frombuffer(b"".join(vocabulary.tokens) + b"\0", np.uint8)
    own_lists, own_room = own.lists()
    returns_lists, returns_room = returns.lists()
    pairs_lists, pairs_room = pairs.lists()
    arrays: dict[str, Any] = {
        "row": row,
        "fixed": padded(np.concatenate(fixed)),
        "plain": padded(np.concatenate(plain)),
        "code_row": code_row,
        "code": padded(np.concatenate(codes)),
        "rise": rise,
        "grow": grow,
        "width": width,
        "ends": ends,
        "final": final,
        "back": back,
        "span": span,
        "cost": cost,
        "offset": offset,
        "classes": padded(np.stack(classes)),
        "moves": padded(np.concatenate(moves), MOVES),
        "flat": flat,
        "first": first,
        "letter": first_bytes(vocabulary.tokens)[ord("a")],
        "eos": np.array(vocabulary.eos, np.int32),
    }
    return Tables(
        own=own_lists,
        returns=returns_lists,
        pairs=pairs_lists,
        own_room=own_room,
        returns_room=returns_room,
        pairs_room=pairs_room,
        **arrays,
    )


def _wide(code: np.ndarray, rests: int) -> np.ndarray:
    room_ = rests - code.shape[1]
    return np.pad(code, [(0, 0), (0, room_)], constant_values=NONE)
