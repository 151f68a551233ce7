"""Calibration of predicted probabilities: bins, their error, and the ranking."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError


class Bins(NamedTuple):
    """Predictions beside outcomes, in equal bins of [0, 1]."""

    predicted: list[float]  # mean prediction of each bin that has any
    observed: list[float]  # mean outcome there
    counts: list[float]
    error: float  # mean |predicted - observed|, by count
    auc: float  # chance that a case of the outcome 1 is predicted above one of 0


def bins(predicted: Any, observed: Any, weights: Any = None, count: int = 10) -> Bins:
    """Bin predictions, with the outcomes of each bin.

    Args:
        predicted: probabilities, of any shape.
        observed: outcomes of the same shape. One may be a probability: 0.3 counts as
            0.3 of a case with outcome 1 and 0.7 of one with 0.
        weights: of the same shape, 0 or more; None: 1.
        count: bins.

    Raises:
        DataError: shapes differ, or all weights are 0.
    """
    f, a = (np.asarray(x, np.float64).reshape(-1) for x in (predicted, observed))
    w = np.ones_like(f) if weights is None else np.asarray(weights, float).reshape(-1)
    if f.shape != a.shape or f.shape != w.shape or not w.sum() > 0 or count < 1:
        raise DataError(
            f"{f.size} predictions, {a.size} outcomes, weights that sum to {w.sum()}, "
            f"{count} bins: give arrays of one size, some of them counted"
        )
    which = np.minimum((f * count).astype(int), count - 1)
    mass = np.bincount(which, w, count)
    filled = mass > 0
    means = [np.bincount(which, w * x, count)[filled] / mass[filled] for x in (f, a)]
    gap = np.abs(means[0] - means[1])
    return Bins(
        means[0].tolist(),
        means[1].tolist(),
        mass[filled].tolist(),
        float((gap * mass[filled]).sum() / mass.sum()),
        auc(f, a, w),
    )


def auc(predicted: np.ndarray, observed: np.ndarray, weights: np.ndarray) -> float:
    """Compute the area under the ROC curve; ties count a half.

    An empty class gives 0.5.
    """
    values, which = np.unique(predicted, return_inverse=True)
    yes = np.bincount(which, weights * observed, len(values))
    no = np.bincount(which, weights * (1 - observed), len(values))
    total = yes.sum() * no.sum()
    if total <= 0:
        return 0.5
    below = np.cumsum(no) - no
    return float((yes * (below + 0.5 * no)).sum() / total)


def plot(name: str, found: Bins, what: str = "acceptance") -> dict[str, Any]:
    """Describe the bins as a plot of the report, with the number of cases in each.

    A calibrated predictor lies on the diagonal, within the errors: 95 % of a mean of as
    many cases. (Outcomes that are probabilities vary less than that.)
    """
    series: Sequence[dict[str, Any]] = (
        {
            "name": name,
            "x": found.predicted,
            "y": found.observed,
            "error": error(found),
        },
        {
            "name": "calibrated",
            "x": [0.0, 1.0],
            "y": [0.0, 1.0],
            "error": [0.0, 0.0],
            "of": 0,
        },
    )
    return {
        "name": f"calibration-{name}".replace(" ", "-"),
        "title": f"{what} as predicted and as it came, {name}",
        "x": "predicted",
        "series": list(series),
        "counts": {"x": found.predicted, "n": found.counts},
    }


def table(each: Mapping[str, Bins], what: str = "acceptance") -> dict[str, Any]:
    """Describe the same bins as a table of the report."""
    lines = []
    for name, found in each.items():
        columns = (found.predicted, found.observed, error(found), found.counts)
        for prediction, outcome, margin, count in zip(*columns):
            cells = [
                f"{prediction:.3f}",
                f"{outcome:.3f} ± {margin:.3f}",
                f"{count:.0f}",
            ]
            lines.append([name, *cells])
    notes = [
        f"{name}: {sum(found.counts):.0f} cases, calibration error {found.error:.3f}, "
        f"AUC {found.auc:.3f}."
        for name, found in each.items()
    ]
    return {
        "title": f"Calibration of {what}",
        "heads": ["", "predicted", "came", "cases"],
        "lines": lines,
        "notes": notes,
    }


def error(found: Bins) -> list[float]:
    """Compute the 95 % error of each bin's mean outcome."""
    a, n = np.asarray(found.observed), np.asarray(found.counts)
    return (1.96 * np.sqrt(a * (1 - a) / n)).tolist()
