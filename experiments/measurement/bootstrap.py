"""Bootstrap over prompts: intervals of tokens per call, errors of differences."""

from collections.abc import Sequence
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
