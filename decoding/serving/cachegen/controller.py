"""Which level each chunk of a cache is sent at, so that loading meets a deadline.

Yuhan Liu et al., *CacheGen: KV Cache Compression and Streaming for Fast Large Language
Model Serving*, SIGCOMM 2024, arXiv 2310.07240, section 5.3.

Chunks are sent one after another. Before each, the bandwidth that the last one met is
taken for what comes, and the chunk gets the best level that fits its share of the time
left; if none does, its text is sent and recomputed, if that is faster than its smallest
level. Everything is a function of a trace of bandwidths, so results do not depend on
the machine.

Deviations: a chunk's share is of the time left, not of the whole deadline: what early
chunks save serves later ones.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from models.errors import MethodError

TEXT = -1
ROUNDED = 1 + 1e-9  # what sums of times may be off by


class Piece(NamedTuple):
    """A part of a trace of bandwidths; the last one goes on for ever."""

    seconds: float
    rate: float  # bytes a second


class Sent(NamedTuple):
    """One chunk as it was sent."""

    level: int  # index in its sizes; TEXT: recomputed
    begun: float  # seconds
    ended: float


def schedule(
    sizes: Sequence[Sequence[float]],
    trace: Sequence[Piece],
    deadline: float,
    recompute: Sequence[float] = (),
) -> list[Sent]:
    """Choose a level for every chunk.

    Args:
        sizes: bytes of each chunk at each level, the best level first.
        trace: bandwidths from the first byte on.
        deadline: seconds in which all chunks should be there.
        recompute: seconds to compute each chunk from its text; empty: it cannot be.

    Raises:
        MethodError: a trace or a chunk that means nothing.
    """
    if not trace or any(p.seconds <= 0 or p.rate <= 0 for p in trace):
        raise MethodError(f"trace={list(trace)}: use positive seconds and rates")
    if not all(sizes) or (recompute and len(recompute) != len(sizes)):
        raise MethodError("give every chunk a size a level, and a time to recompute")
    now, rate, sent = 0.0, trace[0].rate, []
    for i, levels in enumerate(sizes):
        share = (deadline - now) / (len(sizes) - i)
        fits = [j for j, size in enumerate(levels) if size / rate <= share * ROUNDED]
        level = fits[0] if fits else min(range(len(levels)), key=levels.__getitem__)
        if recompute and not fits and recompute[i] < levels[level] / rate:
            level = TEXT
        if level == TEXT:
            end = now + recompute[i]
        else:
            end = arrival(trace, now, levels[level])
            rate = levels[level] / (end - now)
        sent.append(Sent(level, now, end))
        now = end
    return sent


def arrival(trace: Sequence[Piece], begun: float, size: float) -> float:
    """Return when `size` bytes are there that are sent from `begun` on."""
    start = 0.0
    for i, piece in enumerate(trace):
        end = math.inf if i == len(trace) - 1 else start + piece.seconds
        if end > begun:
            there = max(start, begun)
            if there + size / piece.rate <= end:
                return there + size / piece.rate
            size -= (end - there) * piece.rate
        start = end
    raise AssertionError("the last piece goes on for ever")
