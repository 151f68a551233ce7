"""Counts held against an exact law."""

import numpy as np
from scipy import stats


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """The p-value of `counts` under `law`: see `held_against`."""
    return held_against(counts, law)[2]


def held_against(counts: np.ndarray, law: np.ndarray) -> tuple[float, int, float]:
    """Chi-square, degrees of freedom and p-value of `counts` under `law`.

    Cells that expect under 5 are pooled. A count where the law is 0 gives infinity and
    0.0: no rounding makes an impossible token.
    """
    counts, law = np.ravel(counts), np.ravel(law)
    if counts[law == 0].any():
        return float("inf"), int((law > 0).sum()) - 1, 0.0
    expected = law * counts.sum()
    small = expected < 5
    seen = np.append(counts[~small], counts[small].sum())
    due = np.append(expected[~small], expected[small].sum())
    seen, due = seen[due > 0], due[due > 0]
    statistic, freedom = ((seen - due) ** 2 / due).sum(), max(len(due) - 1, 1)
    return float(statistic), freedom, float(stats.chi2.sf(statistic, freedom))
