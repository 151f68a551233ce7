"""Sequential temperature scaling: calibrate the products of a chain's confidences.

Cheng, Yu, Shao, Li, Xiong et al., *DSpark: Confidence-Scheduled Speculative Decoding
with Semi-Autoregressive Generation*, 2026, arXiv 2607.05147. A schedule trusts not a
draft's confidence c_j but the product of those up to it. With l_j the logit of c_j,
from the first draft on,

    T_j = argmin over T of the calibration error of
          prod_{i < j} sigmoid(l_i / T_i) sigmoid(l_j / T)

against whether (or how likely) drafts 1 .. j were all accepted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.errors import DataError
from training.evaluation import calibration

GRID = np.exp(np.linspace(np.log(0.25), np.log(4.0), 97))


def fitted(logits: Any, accepted: Any, bins: int = 10) -> list[float]:
    """Fit a temperature for each draft of a chain.

    Args:
        logits: float[N, K], of the confidences of N chains.
        accepted: float[N, K], whether each draft is accepted where those before it are,
            or the chance that it is.
        bins: of the calibration error.

    Returns:
        K temperatures.

    Raises:
        DataError: other shapes, or no chain.
    """
    x, outcome = _chains(logits, accepted)
    reach, found = np.ones(len(x)), []
    for j in range(x.shape[1]):
        each = [reach / (1 + np.exp(-x[:, j] / t)) for t in GRID]
        error = [calibration.bins(p, outcome[:, j], count=bins).error for p in each]
        best = int(np.argmin(error))
        found.append(float(GRID[best]))
        reach = each[best]
    return found


def errors(
    logits: Any, accepted: Any, temperatures: Sequence[float], bins: int = 10
) -> list[float]:
    """Compute the calibration error of each draft's product of confidences.

    Args:
        logits, accepted: as `fitted` reads them.
        temperatures: K numbers above 0.
        bins: of the error.

    Raises:
        DataError: other shapes, or no chain.
    """
    x, outcome = _chains(logits, accepted)
    if len(temperatures) != x.shape[1] or not min(temperatures) > 0:
        raise DataError(
            f"temperatures={list(temperatures)} of {x.shape[1]} drafts: give one above "
            "0 for each"
        )
    sure = np.cumprod(1 / (1 + np.exp(-x / np.asarray(temperatures))), 1)
    pairs = zip(sure.T, outcome.T, strict=True)
    return [calibration.bins(p, seen, count=bins).error for p, seen in pairs]


def _chains(logits: Any, accepted: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, and whether a chain is accepted down to each draft."""
    x, a = np.asarray(logits, np.float64), np.asarray(accepted, np.float64)
    if x.ndim != 2 or x.shape != a.shape or not x.size:
        raise DataError(
            f"logits of shape {x.shape}, outcomes of {a.shape}: give two arrays [N, K]"
        )
    return x, np.cumprod(a, 1)
