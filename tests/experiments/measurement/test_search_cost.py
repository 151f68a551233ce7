"""The best of n samples, and its cost beside a search's."""

import itertools
import types

import numpy as np
import pytest

from experiments.measurement import search_cost


def test_chances_are_those_of_all_subsets():
    samples = [1, 0, 0, 1, 0]
    curve = search_cost.chances([2, 0, 5], 5)
    for n in range(6):
        best = [any(x) for x in itertools.combinations(samples, n)]
        assert curve[0, n] == pytest.approx(np.mean(best))
    assert curve[1].tolist() == [0] * 6 and curve[2].tolist() == [0] + [1] * 5
    # Planted: samples that are put back.
    assert curve[0, 2] != pytest.approx(1 - (3 / 5) ** 2)


def test_sizes_between_and_above():
    curve = search_cost.chances([1, 2], 2)
    assert curve[:, 1].tolist() == [0.5, 1.0]
    assert search_cost.at_size(curve, 0.5).tolist() == [0.25, 0.5]
    assert search_cost.at_size(curve, 1.5).tolist() == [0.75, 1.0]
    assert search_cost.at_size(curve, 7.0).tolist() == [1.0, 1.0]


def test_a_saving_by_hand():
    """Of 4 samples each 2 are right: 5/6 at two of them. A search solves 5 of 6."""
    curve = search_cost.chances([2] * 6, 4)
    right, nodes = [1, 1, 1, 1, 1, 0], [10.0] * 6
    ratio, (low, high), is_bound = search_cost.saving(curve, [15.0] * 6, right, nodes)
    assert ratio == pytest.approx(2 * 15 / 10) and low <= ratio <= high
    assert not is_bound
    # Planted: a search of thrice the nodes saves a third.
    dear = search_cost.saving(curve, [15.0] * 6, right, [30.0] * 6)
    assert dear[0] == pytest.approx(1.0)
    assert search_cost.saving(curve / 2, [15.0] * 6, right, nodes)[2]


def test_rows_and_trees_count_the_same():
    """Two prompts of two rows, and two trees."""
    rows = types.SimpleNamespace(nodes_run=None, target_calls=np.asarray([3, 5, 2, 4]))
    tree = types.SimpleNamespace(nodes_run=np.asarray([8, 6]), rounds=9)
    out = lambda stats: types.SimpleNamespace(stats=stats)
    assert search_cost.spent(out(rows), 2) == {"nodes": [8, 6], "rounds": 5}
    assert search_cost.spent(out(tree), 2) == {"nodes": [8, 6], "rounds": 9}
