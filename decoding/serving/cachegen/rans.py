"""Integer range coding of many lanes at once, in NumPy on the host.

Duda, *Asymmetric numeral systems: entropy coding combining speed of Huffman
coding with compression rate of arithmetic coding*, 2013, arXiv 1311.2540, the range
variant. With f(s) of 2^16 the frequency of symbol s, and c(s) the sum of those before:

    x  ->  (x div f(s)) 2^16 + c(s) + x mod f(s)

A lane has a state of 32 bits, from which words of 16 bits go out before it overflows:
one a symbol at most. A lane is a row of symbols with a table of its own; all lanes are
of one length, and their words lie in one array, by symbol and lane. Only integers are
computed, so every machine codes alike.

Cost: a dozen NumPy operations over the lanes a symbol.
"""

from typing import NamedTuple

import numpy as np

BITS = 16
TOTAL = 1 << BITS  # sum of a lane's frequencies
LOW = np.uint64(1 << 16)  # states are in [2^16, 2^32)
SHIFT, MASK = np.uint64(16), np.uint64(TOTAL - 1)


class Coded(NamedTuple):
    """The symbols of all lanes."""

    words: np.ndarray  # uint16[W]
    states: np.ndarray  # uint32[lanes]

    @property
    def bits(self) -> int:
        """The bits of words and states."""
        return 16 * len(self.words) + 32 * len(self.states)


def encode(symbols: np.ndarray, frequencies: np.ndarray) -> Coded:
    """Code symbols [lanes, n], each lane by its row of `frequencies`.

    Args:
        symbols: integers in [0, A).
        frequencies: integers [lanes, A], which sum to 2^16 a lane. A symbol that occurs
            has at least 1.

    Raises:
        ValueError: a symbol of frequency 0, or frequencies of another sum.
    """
    lanes = len(symbols)
    own, before = _table(frequencies)
    at = np.asarray(symbols, np.int64)
    # Symbol by symbol, so that a step reads rows.
    sizes = np.ascontiguousarray(np.take_along_axis(own, at, 1).T)
    starts = np.ascontiguousarray(np.take_along_axis(before, at, 1).T)
    if not sizes.all():
        raise ValueError("a symbol has frequency 0 in its lane's table")
    states = np.full(lanes, LOW)
    words = []
    for f, start in zip(sizes[::-1], starts[::-1]):
        full = states >= f << SHIFT
        words.append((states[full] & MASK).astype(np.uint16))
        states = np.where(full, states >> SHIFT, states)
        whole, part = np.divmod(states, f)
        states = (whole << SHIFT) + part + start
    words.reverse()
    flat = np.concatenate(words) if words else np.zeros(0, np.uint16)
    return Coded(flat, states.astype(np.uint32))


def decode(coded: Coded, frequencies: np.ndarray, count: int) -> np.ndarray:
    """Return the symbols uint8[lanes, count] that were coded.

    Raises:
        ValueError: the words are not those of as many symbols.
    """
    own, before = _table(frequencies)
    lanes = len(own)
    if len(coded.states) != lanes:
        raise ValueError(f"{len(coded.states)} states for {lanes} lanes")
    # A binary search in each lane's sorted starts, padded to a power of two.
    depth = max(own.shape[1] - 1, 1).bit_length()
    pad = ((0, 0), (0, (1 << depth) - own.shape[1]))
    starts = np.pad(before, pad, constant_values=TOTAL).reshape(-1)
    sizes, first = np.pad(own, pad).reshape(-1), np.arange(lanes) << depth
    states, at = coded.states.astype(np.uint64), 0
    symbols = np.zeros((count, lanes), np.uint8)
    for row in symbols:
        slot, place = states & MASK, first.copy()
        for step in range(depth - 1, -1, -1):
            ahead = place + (1 << step)
            place = np.where(starts[ahead] <= slot, ahead, place)
        row[:] = place - first
        states = sizes[place] * (states >> SHIFT) + slot - starts[place]
        empty = np.flatnonzero(states < LOW)
        words = coded.words[at : at + len(empty)]
        at += len(empty)
        if len(words) != len(empty):
            raise ValueError("the words end before the symbols do")
        states[empty] = states[empty] << SHIFT | words
    if at != len(coded.words) or (states != LOW).any():
        raise ValueError("words are left over, or a state is not the first one")
    return symbols.T


def _table(frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    own = np.asarray(frequencies, np.uint64)
    if (own.sum(1) != TOTAL).any() or own.shape[1] > 256:
        raise ValueError(f"a lane's frequencies sum to {TOTAL}, of at most 256 symbols")
    return own, np.cumsum(own, 1) - own


def normalised(counts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return frequencies uint32[lanes, A] that sum to 2^16.

    Args:
        counts: [lanes, A]: how often each symbol occurred.
        sizes: int[lanes]: symbols 0 .. size - 1 of a lane get at least 1.
    """
    counts = np.asarray(counts, np.float64)
    used = np.arange(counts.shape[1]) < np.asarray(sizes)[:, None]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    spare = TOTAL - np.asarray(sizes)[:, None]
    found = np.where(used, 1 + np.floor(share * spare), 0).astype(np.int64)
    # What rounding left goes to the commonest symbol.
    best = found.argmax(1)
    found[np.arange(len(found)), best] += TOTAL - found.sum(1)
    return found.astype(np.uint32)


def entropy(symbols: np.ndarray, frequencies: np.ndarray) -> float:
    """Return the bits that an ideal coder with these tables takes."""
    lanes = np.arange(len(symbols))[:, None]
    return float(-np.log2(frequencies[lanes, symbols] / TOTAL).sum())
