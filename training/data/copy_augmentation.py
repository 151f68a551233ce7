"""Training windows that repeat themselves, so that a small model learns to copy.

A window of plain text seldom repeats a long passage, and a model trained on nothing
else copies nothing. `repeat` rewrites a window into episodes: a passage of it, perhaps
a gap of the text that follows, perhaps a marker line, and the passage again, verbatim
or with small edits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator


@dataclass(frozen=True)
class Repeats:
    """How many windows are rewritten, and how; probabilities are in [0, 1]."""

    share: float = 0.3  # of the windows
    markers: tuple[tuple[int, ...], ...] = ()  # token sequences put before a copy
    comment: tuple[int, ...] = ()  # opens a marker line made of the window's own tokens
    newline: tuple[int, ...] = ()  # closes it
    marked: float = 0.7  # copies that follow a marker
    edited: float = 0.35  # copies with small edits
    distant: float = 0.4  # copies that follow a gap of other text
    shortest: int = 16  # tokens of a passage; lengths are log-uniform
    longest: int = 512


def repeat(rng: Generator, window: np.ndarray, how: Repeats) -> np.ndarray:
    """Rewrite `window` int32[n] into episodes of repetition; int32[n] again."""
    size = len(window)
    out: list[np.ndarray] = []
    total = cursor = 0

    def put(piece: np.ndarray) -> None:
        nonlocal total
        out.append(piece)
        total += len(piece)

    def take(count: int) -> np.ndarray:
        nonlocal cursor
        piece = window[cursor : cursor + count]
        cursor += count
        return piece

    longest = max(how.shortest + 1, min(how.longest, size // 2))
    while total < size:
        if rng.random() < 0.5:
            put(take(int(rng.integers(1, 49))))
        passage = take(_log_uniform(rng, how.shortest, longest))
        put(passage)
        if rng.random() < how.distant:
            put(take(_log_uniform(rng, 4, max(5, size // 3))))
        for _ in range(1 + (rng.random() < 0.2)):
            if rng.random() < how.marked:
                put(_marker(rng, window, how))
            start = 0 if rng.random() < 0.75 else int(rng.integers(len(passage) or 1))
            copy = passage[start:]
            put(_edit(rng, copy, window) if rng.random() < how.edited else copy)
        if cursor >= size:  # the window's text is used up: start over in its middle
            cursor = int(rng.integers(size // 2))
    return np.concatenate(out)[:size]


def _log_uniform(rng: Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def _marker(rng: Generator, window: np.ndarray, how: Repeats) -> np.ndarray:
    if how.markers and rng.random() < 0.6:
        return np.asarray(how.markers[rng.integers(len(how.markers))], np.int32)
    words = rng.choice(window, int(rng.integers(1, 7)))
    return np.concatenate([how.comment, words, how.newline]).astype(np.int32)


def _edit(rng: Generator, copy: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Rename one token throughout, or change, drop and insert a few."""
    copy = copy.copy()
    if not len(copy):
        return copy
    if rng.random() < 0.4:
        copy[copy == rng.choice(copy)] = rng.choice(window)
        return copy
    pieces: list[np.ndarray] = []
    rate = rng.uniform(0.01, 0.06)
    kind = rng.random(len(copy))
    fresh = rng.choice(window, len(copy))
    last = 0
    for i in np.flatnonzero(kind < rate).tolist():
        pieces.append(copy[last:i])
        if kind[i] < rate / 3:  # replaced
            pieces.append(fresh[i : i + 1])
        elif kind[i] < 2 * rate / 3:  # inserted before
            pieces += [fresh[i : i + 1], copy[i : i + 1]]
        last = i + 1  # otherwise dropped
    return np.concatenate([*pieces, copy[last:]])
