"""Sequential temperature scaling: calibrate the products of a chain's confidences.

Cheng, Yu, Shao, Li, Xiong et al., *DSpark: Confidence-Scheduled Speculative Decoding
with Semi-Autoregressive Generation*, 2026, arXiv 2607.05147. A schedule trusts not a
draft's confidence c_j but the product of those up to it. With l_j the logit of c_j,
from the first draft on,

    T_j = argmin over T of the calibration error of
          prod_{i < j} sigmoid(l_i / T_i) sigmoid(l_j / T)

against whether (or how likely) drafts 1 .. j were all accepted.
"""

from typing import Any

import numpy as np

from models.errors import DataError
from training.evaluation import calibration

GRID = np.exp(np.linspace(np.log(0.25), np.log(4.0), 97))


def fitted(logits: Any, accepted: Any, bins: int = 10) -> tuple[list[float], list]:
    """Fit a temperature for each draft of a chain.

    Args:
        logits: float[N, K], of the confidences of N chains.
        accepted: float[N, K], whether each draft is accepted where those before it are,
            or the chance that it is.
        bins: of the calibration error.

    Returns:
        The K temperatures, and for each draft the errors of the product before and
        after, with T = 1 everywhere and with the temperatures.

    Raises:
        DataError: other shapes, or no chain.
    """
    x, a = np.asarray(logits, np.float64), np.asarray(accepted, np.float64)
    if x.ndim != 2 or x.shape != a.shape or not x.size:
        raise DataError(
            f"logits of shape {x.shape}, outcomes of {a.shape}: give two arrays [N, K]"
        )
    outcome = np.cumprod(a, 1)
    plain = np.cumprod(1 / (1 + np.exp(-x)), 1)
    reach, found, errors = np.ones(len(x)), [], []
    for j in range(x.shape[1]):
        each = [reach / (1 + np.exp(-x[:, j] / t)) for t in GRID]
        error = [calibration.bins(p, outcome[:, j], count=bins).error for p in each]
        best = int(np.argmin(error))
        before = calibration.bins(plain[:, j], outcome[:, j], count=bins).error
        found.append(float(GRID[best]))
        errors.append((before, error[best]))
        reach = each[best]
    return found, errors
