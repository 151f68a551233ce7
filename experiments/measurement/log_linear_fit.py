"""Laws that are straight in logarithms, with bootstrap intervals.

    y = a + sum_i b_i log2 x_i,     y of a point = sum over units of top / of below

b_i is what a doubling of x_i adds. Units (prompts, or repeats of a timing) are the same
at every point. A draw takes units with replacement, fits, adds to its line residuals
taken with replacement and widened by sqrt(n / (n - p)), and fits again: so the error of
a slope is of the texts and of what the points themselves have of chance, such as their
trainings. Intervals are b ± t error with Student's t at n - p degrees of freedom: four
points on a line say less than forty.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from models.errors import DataError

DRAWS, LEVEL = 2000, 0.95


class Law(NamedTuple):
    """A fitted law; lists are by axis."""

    start: float  # a
    slopes: list[float]  # b
    ci95: list[list[float]]
    r2: float  # share of the points' variance that the law explains
    points: int

    def at(self, x: Sequence[float]) -> float:
        """y at a point."""
        return float(self.start + np.asarray(self.slopes) @ logs(np.asarray(x)))


def logs(x: np.ndarray) -> np.ndarray:
    return np.log2(x)


def straight(x: Sequence, top: Sequence, below: Sequence) -> Law:
    """The law of points x [n, axes] (above 0) with sums top and below [n, units]."""
    return _fit(_axes(x), top, below)


def bends(x: Sequence, top: Sequence, below: Sequence) -> list[list[float]] | None:
    """95 % of what a squared logarithm adds, for every axis: 0 where the law holds.

    None where the points are too few to tell.
    """
    axes = _axes(x)
    centred = axes - axes.mean(0)
    many = all(len(set(column)) > 2 for column in axes.T)
    if not many or len(axes) <= 2 * axes.shape[1] + 1:
        return None
    found = _fit(np.concatenate([axes, centred**2], 1), top, below)
    return found.ci95[axes.shape[1] :]


def _axes(x: Sequence) -> np.ndarray:
    given = np.asarray(x, float)
    if given.ndim != 2 or not (given > 0).all():
        raise DataError(f"x of shape {given.shape}: give [n, axes], all above 0")
    for i, column in enumerate(given.T):
        if len(set(column)) < 2:
            raise DataError(f"axis {i} is {column[0]:g} at every point: vary it")
    return logs(given)


def _fit(axes: np.ndarray, top: Sequence, below: Sequence) -> Law:
    sums = np.asarray(top, float), np.asarray(below, float)
    count, width = len(axes), axes.shape[1] + 1
    if count <= width or any(s.ndim != 2 or len(s) != count for s in sums):
        raise DataError(
            f"{count} points, sums of {[s.shape for s in sums]} for {width} "
            "coefficients: give more points than coefficients, and sums [n, units]"
        )
    design = np.concatenate([np.ones((count, 1)), axes], 1)
    solve = np.linalg.pinv(design)
    y = sums[0].sum(1) / sums[1].sum(1)
    found = solve @ y
    left = ((y - design @ found) ** 2).sum()
    rng = np.random.default_rng(0)
    at = rng.integers(sums[0].shape[1], size=(DRAWS, sums[0].shape[1]))
    ratios = sums[0][:, at].sum(-1) / sums[1][:, at].sum(-1)  # [n, draws]
    line = design @ (solve @ ratios)
    wide = (ratios - line) * np.sqrt(count / (count - width))
    pick = rng.integers(count, size=ratios.shape)
    drawn = solve @ (line + np.take_along_axis(wide, pick, 0))
    away = special.stdtrit(count - width, (1 + LEVEL) / 2) * drawn.std(1)
    ends = np.stack([found - away, found + away], 1)[1:]
    spread = ((y - y.mean()) ** 2).sum()
    r2 = 1 - left / spread if spread > 0 else 0.0
    return Law(float(found[0]), found[1:].tolist(), ends.tolist(), float(r2), count)
