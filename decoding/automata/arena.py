"""Many grammars in one set of tables, so that rows differ by their first state alone.

Lengths grow together, by factors of 4, so that batches of other grammars seldom need
another program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoding.automata import machine
from decoding.automata.byte_machine import DEAD, KINDS, POP, STRING
from decoding.automata.lift import Lifted, Lists, pack
from decoding.automata.machine import FIRST, Tables
from decoding.automata.rests import NONE

STEP = 4  # from a length to the next
# Of the tables, at least: as many times each of them as one needs.
STATES, MOVES, WORDS, CODES = 512, 32768, 32, 64
OWN, RETURNS, PAIRS, JUMPS = 4096, 256, 128, 2048
# Of a state's lists, of rests, of labels and of grammars, at least.
OWN_ROOM, RETURNS_ROOM, PAIRS_ROOM, JUMPS_ROOM = 64, 64, 16, 32
RESTS, LABELS, GRAMMARS = 128, 4, 64
BASE = FIRST + STRING  # the first state of a grammar


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that a grammar may use; specials and EOS have no bytes."""

    tokens: list[bytes]
    size: int  # V
    eos: tuple[int, ...]

    @property
    def letter(self) -> int:
        """A token that is one character; 0: there is none."""
        return self.tokens.index(b"a") if b"a" in self.tokens else 0


class Strings(NamedTuple):
    """STRING over tokens, which all grammars share."""

    lifted: Lifted  # its states are the first ones; the others are not used
    width: np.ndarray  # uint8[STRING, V]


def room(size: int, least: int) -> int:
    """Return `least` times the power of STEP that `size` entries are padded to."""
    while least < size:
        least *= STEP
    return least


def padded(values: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """Pad the first axis of `values` to `size` entries."""
    wide = [(0, size - len(values))] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, wide, constant_values=value)


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
        """Place a grammar behind the others; return the state in which texts begin."""
        last = self.slabs[-1] if self.slabs else None
        slab = _Slab(BASE if last is None else last.base + last.size, lifted)
        self.slabs.append(slab)
        self._tables = None
        return slab.start

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

    def lists(self, least: int) -> tuple[np.ndarray, int]:
        """Return the entries, with room behind the last list, and that room."""
        most = room(int(self.at[:, 1].max(initial=0)), least)
        values = np.concatenate(self.parts)
        return np.pad(values, [(0, most), (0, 0)]), most


def _tables(
    vocabulary: Vocabulary, strings: Strings | None, slabs: Sequence[_Slab]
) -> Tables:
    size = max([BASE, *(slab.base + slab.size for slab in slabs)])
    free_words = np.zeros((2, -(-vocabulary.size // 32)), np.uint32)
    free_words[1] = pack(np.ones(vocabulary.size, bool))
    row, code_row = np.zeros(size, np.int32), np.zeros(size, np.int32)
    row[machine.FREE] = 1
    ends, final = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    labels = max([1, *(slab.lifted.machine.back.shape[1] for slab in slabs)])
    back = np.full((size, room(labels, LABELS)), DEAD, np.int32)
    span = np.zeros((size, 2), np.int32)
    rise, grow, cost, offset = (np.zeros((size, 2), np.int32) for _ in range(4))
    own, returns, pairs = _Pile(size, 2), _Pile(size, 2), _Pile(size, 1)
    jumps = _Pile(size, 1)
    blocks = [(slab.base, slice(STRING, None), slab) for slab in slabs]
    width = np.zeros((STRING, vocabulary.size), np.uint8)
    if strings is not None:
        blocks.insert(0, (FIRST, slice(0, STRING), _Slab(BASE, strings.lifted)))
        width = strings.width
    most_rests = max([0, *(slab.lifted.code.shape[1] for _, _, slab in blocks)])
    rests = room(most_rests, RESTS)
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
        jumps.put(at, lifted.jumps, of)
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
    piles = {"own": own, "returns": returns, "pairs": pairs, "jumps": jumps}
    rooms = (OWN_ROOM, RETURNS_ROOM, PAIRS_ROOM, JUMPS_ROOM)
    lists = {name: piles[name].lists(least) for name, least in zip(piles, rooms)}
    rows: dict[str, Any] = {  # a line each
        "moves": (np.concatenate(moves), MOVES),
        "fixed": (np.concatenate(fixed), WORDS),
        "plain": (np.concatenate(plain), WORDS),
        "code": (np.concatenate(codes), CODES),
    }
    leasts = (OWN, RETURNS, PAIRS, JUMPS)
    rows |= {name: (lists[name][0], least) for name, least in zip(piles, leasts)}
    times = max(room(len(values), least) // least for values, least in rows.values())
    times = max(times, room(size, STATES) // STATES)
    wide = {name: padded(x, least * times) for name, (x, least) in rows.items()}
    states = STATES * times
    by_state = {"row": row, "code_row": code_row, "rise": rise, "grow": grow}
    by_state |= {"span": span, "cost": cost, "offset": offset}
    arrays: dict[str, Any] = {
        **{name: padded(values, states) for name, values in by_state.items()},
        **{name: wide[name] for name in ("moves", "fixed", "plain", "code")},
        "ends": padded(ends, states, -1),
        "final": padded(final, states, -1),
        "back": padded(back, states, DEAD),
        "width": width,
        "classes": padded(np.stack(classes), room(len(classes), GRAMMARS)),
        "flat": flat,
        "first": first,
        "letter": vocabulary.letter,
        "eos": np.array(vocabulary.eos, np.int32),
        "end_words": pack(np.isin(np.arange(vocabulary.size), vocabulary.eos)),
    }
    for name, pile in piles.items():
        arrays[name] = machine.Lists(padded(pile.at, states), wide[name])  # type: ignore[arg-type]
        arrays[f"{name}_room"] = lists[name][1]
    return Tables(**arrays)


def _wide(code: np.ndarray, rests: int) -> np.ndarray:
    room_ = rests - code.shape[1]
    return np.pad(code, [(0, 0), (0, room_)], constant_values=NONE)
