"""Bootstrap over prompts and repeats: intervals of means and speed-ups, errors."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def tokens_per_call_interval(
    new: Sequence[int], calls: Sequence[int], level: float = 0.95, draws: int = 2000
) -> list[float]:
    """Bootstrap an interval [low, high] of sum(new) / sum(calls) over prompts."""
    rng = np.random.default_rng(0)
    at = rng.integers(len(new), size=(draws, len(new)))
    ratios = np.asarray(new)[at].sum(1) / np.maximum(np.asarray(calls)[at].sum(1), 1)
    tail = (1 - level) / 2
    return [float(x) for x in np.quantile(ratios, [tail, 1 - tail])]


def speedup_interval(
    seconds: Sequence[Sequence[float]],
    plain_seconds: Sequence[Sequence[float]],
    new: Sequence[int],
    plain_new: Sequence[int],
    level: float = 0.95,
    draws: int = 2000,
) -> list[float] | None:
    """Bootstrap an interval [low, high] of the median speed-up over plain decoding.

    Each draw takes batches and repeats with replacement. A method's time and plain
    decoding's in the same turn are drawn together, so slow moments of the machine
    cancel. The statistic is the report's: the median over repeats of the ratio of
    tokens a second.

    Args:
        seconds: float[repeats][batches] of the method.
        plain_seconds: float[repeats][batches] of plain decoding in the same turns.
        new: int[batches], new tokens of the method.
        plain_new: int[batches], new tokens of plain decoding.
        level: the interval's coverage.
        draws: number of bootstrap draws.

    Returns:
        [low, high]; None of a single batch timed once, which has no spread.
    """
    times, plain_times = np.asarray(seconds, float), np.asarray(plain_seconds, float)
    repeats, batches = times.shape
    if repeats * batches == 1:
        return None
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(batches, np.full(batches, 1 / batches), size=draws)
    gained = (drawn @ np.asarray(new)) / np.maximum(drawn @ np.asarray(plain_new), 1)
    ratios = gained[:, None] * (drawn @ plain_times.T) / (drawn @ times.T)
    turns = rng.integers(repeats, size=(draws, repeats))
    medians = np.median(np.take_along_axis(ratios, turns, axis=1), axis=1)
    tail = (1 - level) / 2
    return [float(x) for x in np.quantile(medians, [tail, 1 - tail])]


def pooled(rows: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the new tokens and the calls of all rows: (int[P], int[P])."""
    return (
        np.concatenate([r["new"] for r in rows]),
        np.concatenate([r["calls"] for r in rows]),
    )


def difference(
    more: Sequence, less: Sequence, draws: int = 2000
) -> tuple[float, float]:
    """Compute the gap in tokens a call on the same prompts, and its bootstrap error."""
    (new, calls), (other, used) = pooled(more), pooled(less)
    at = np.random.default_rng(0).integers(len(new), size=(draws, len(new)))
    gaps = new[at].sum(1) / calls[at].sum(1) - other[at].sum(1) / used[at].sum(1)
    whole = new.sum() / calls.sum() - other.sum() / used.sum()
    return float(whole), float(gaps.std())


def interval(
    statistic: Callable[[np.ndarray], float],
    count: int,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[float, list[float]]:
    """Compute a statistic of `count` prompts, and its bootstrap interval [low, high].

    Args:
        statistic: indices int[count] of prompts -> a number. What it compares is drawn
            together, so that the interval is a paired one.
        count: number of prompts.
        level: the interval's coverage.
        draws: number of bootstrap draws.
    """
    at = np.random.default_rng(0).integers(count, size=(draws, count))
    tail = (1 - level) / 2
    ends = np.quantile([statistic(each) for each in at], [tail, 1 - tail])
    return float(statistic(np.arange(count))), [float(x) for x in ends]
