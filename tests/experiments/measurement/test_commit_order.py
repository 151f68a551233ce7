"""Kendall's tau of commits, against SciPy."""

import numpy as np
import pytest
from scipy import stats

from experiments.measurement import commit_order


def test_tau_is_scipys():
    """Planted: without the correction for ties the values differ."""
    rng = np.random.default_rng(0)
    differ = 0
    for size in (2, 5, 9):
        for _ in range(20):
            steps = rng.integers(0, 4, size).tolist()
            tau = commit_order.kendall_tau(steps)
            known = stats.kendalltau(np.arange(size), steps).statistic
            if tau is None:
                assert len({*steps}) == 1 and np.isnan(known)
                continue
            assert tau == pytest.approx(known)
            signs = np.sign(np.subtract.outer(steps, steps))
            plain = np.tril(signs, -1).sum() / (size * (size - 1) / 2)
            differ += plain != pytest.approx(known)
    assert differ > 10


def test_orders_by_hand():
    """Planted: a mean that takes texts of one step for 0."""
    tau = commit_order.kendall_tau
    assert tau([0, 1, 2, 3]) == pytest.approx(1) and tau([2, 1, 0]) == pytest.approx(-1)
    assert tau([1, 1]) is tau([0]) is tau([]) is None
    assert commit_order.left_to_right([[0, 1], [3, 3, 3]]) == pytest.approx(1)
    assert commit_order.left_to_right([[0], [1, 1]]) is None
