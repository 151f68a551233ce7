"""Laws that are straight in logarithms, with bootstrap intervals.

    y = a + sum_i b_i log2 x_i,     y of a point = sum over units of top / of below

A doubling of x_i adds b_i. Units (prompts, or repeats of a timing) are the same at
every point. A bootstrap draw takes units with replacement and fits a line. It adds
residuals to the line, taken with replacement and widened by sqrt(n / (n - p)), and fits
again. So the error of a slope covers chance in the texts and in the points themselves,
such as their trainings. Intervals are b ± t error with Student's t at n - p degrees of
freedom: wider for four points than for forty.
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
        """Evaluate y at a point."""
        return float(self.start + np.asarray(self.slopes) @ logs(np.asarray(x)))


def logs(x: np.ndarray) -> np.ndarray:
    return np.log2(x)


def straight(x: Sequence, top: Sequence, below: Sequence) -> Law:
    """Fit the law of points x [n, axes] > 0; sums top and below are [n, units]."""
    return _fit(_axes(x), top, below)


def bends(x: Sequence, top: Sequence, below: Sequence) -> list[list[float]] | None:
    """Compute the 95 % interval of a squared logarithm's coefficient, for every axis.

    An interval around 0: the law is straight. None if the points are too few.
    """
    axes = _axes(x)
    centred = axes - axes.mean(0)
    is_enough = all(len(set(column)) > 2 for column in axes.T)
    if not is_enough or len(axes) <= 2 * axes.shape[1] + 1:
        return None
    law = _fit(np.concatenate([axes, centred**2], 1), top, below)
    return law.ci95[axes.shape[1] :]


def _axes(x: Sequence) -> np.ndarray:
    """Check x and return its logarithms float[n, axes]."""
    points = np.asarray(x, float)
    if points.ndim != 2 or not (points > 0).all():
        raise DataError(f"x of shape {points.shape}: give [n, axes], all above 0")
    for i, column in enumerate(points.T):
        if len(set(column)) < 2:
            raise DataError(f"axis {i} is {column[0]:g} at every point: vary it")
    return logs(points)


def _fit(axes: np.ndarray, top: Sequence, below: Sequence) -> Law:
    """Fit sum(top) / sum(below) to a + axes b, with bootstrap intervals."""
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
    coefficients = solve @ y
    squares_left = ((y - design @ coefficients) ** 2).sum()
    rng = np.random.default_rng(0)
    at = rng.integers(sums[0].shape[1], size=(DRAWS, sums[0].shape[1]))
    ratios = sums[0][:, at].sum(-1) / sums[1][:, at].sum(-1)  # [n, draws]
    line = design @ (solve @ ratios)
    residuals = (ratios - line) * np.sqrt(count / (count - width))
    pick = rng.integers(count, size=ratios.shape)
    draws = solve @ (line + np.take_along_axis(residuals, pick, 0))
    half_width = special.stdtrit(count - width, (1 + LEVEL) / 2) * draws.std(1)
    ends = np.stack([coefficients - half_width, coefficients + half_width], 1)[1:]
    spread = ((y - y.mean()) ** 2).sum()
    r2 = 1 - squares_left / spread if spread > 0 else 0.0
    return Law(
        float(coefficients[0]),
        coefficients[1:].tolist(),
        ends.tolist(),
        float(r2),
        count,
    )
