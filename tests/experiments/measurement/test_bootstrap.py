"""Bootstrap intervals of any statistic."""

import numpy as np

from experiments.measurement import bootstrap


def test_a_paired_difference_has_a_narrow_interval():
    """Pairs that differ by 0.1 throughout: their own spread is not in the interval."""
    second = np.random.default_rng(1).normal(size=50)
    first = second + 0.1
    gap, ends = bootstrap.interval(lambda at: (first - second)[at].mean(), 50)
    np.testing.assert_allclose([gap, *ends], 0.1)
    # Planted: other prompts in place of the pairs.
    other = second[::-1]
    _, (low, high) = bootstrap.interval(lambda at: (first - other)[at].mean(), 50)
    assert low < 0 < high


def test_an_interval_by_hand():
    """Two prompts of 0 and 1: means of 0, 1/2 and 1, a quarter of them at each end."""
    values = np.asarray([0.0, 1.0])
    assert bootstrap.interval(lambda at: values[at].mean(), 2) == (0.5, [0.0, 1.0])
    assert (
        bootstrap.interval(lambda at: values[at].mean(), 2, level=0.4)[1] == [0.5] * 2
    )
