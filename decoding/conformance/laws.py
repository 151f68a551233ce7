"""Chi-square tests of counts against an exact law."""

import numpy as np
from scipy import stats


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """Return the p-value of `counts` under `law`: see `held_against`."""
    return held_against(counts, law)[2]


def held_against(counts: np.ndarray, law: np.ndarray) -> tuple[float, int, float]:
    """Return chi-square, degrees of freedom and p-value of `counts` under `law`.

    `counts` and `law` have one shape; `law` sums to 1. Cells with an expected count
    below 5 are pooled. A count where the law is 0 gives infinity and 0.0: rounding
    cannot produce an impossible token.
    """
    counts, law = np.ravel(counts), np.ravel(law)
    if counts[law == 0].any():
        return float("inf"), int((law > 0).sum()) - 1, 0.0
    expected = law * counts.sum()
    small = expected < 5
    observed = np.append(counts[~small], counts[small].sum())
    predicted = np.append(expected[~small], expected[small].sum())
    observed, predicted = observed[predicted > 0], predicted[predicted > 0]
    statistic, freedom = (
        ((observed - predicted) ** 2 / predicted).sum(),
        max(len(predicted) - 1, 1),
    )
    return float(statistic), freedom, float(stats.chi2.sf(statistic, freedom))
