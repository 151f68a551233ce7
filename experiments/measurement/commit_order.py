"""The order in which a canvas was written, against the order of its positions.

Kendall's tau-b is 1 for a text written from left to right, -1 from right to left, and
about 0 for an order that ignores positions. Positions of one step are ties.
"""

from collections.abc import Sequence

import numpy as np


def kendall_tau(steps: Sequence[int]) -> float | None:
    """Return tau-b of positions and the steps that committed them.

    None where it does not exist: a text of one token, or of one step.
    """
    later = np.sign(np.subtract.outer(steps, steps))  # [i, j]: i after j
    upper = np.tril_indices(len(steps), -1)
    pairs = later[upper]
    untied = int(np.abs(pairs).sum())
    if not untied:
        return None
    return float(pairs.sum() / np.sqrt(untied * len(pairs)))


def left_to_right(texts: Sequence[Sequence[int]]) -> float | None:
    """Return the mean tau over the texts that have one; None if none has."""
    found = [tau for text in texts if (tau := kendall_tau(text)) is not None]
    return float(np.mean(found)) if found else None
