"""Budgets of rows and layers: shares, exact sums, and the most that a layer holds."""

import numpy as np
import pytest

from decoding.cache_eviction import budgets
from models.errors import MethodError

pytestmark = pytest.mark.kv


@pytest.mark.parametrize("layers", ["uniform", "pyramid", (1, 2, 3, 10)])
@pytest.mark.parametrize("budget", [33, 0.3])
def test_layers_share_the_budget_exactly(layers, budget):
    """Rows of other prompts; planted: shares cut layer by layer."""
    prompts = np.asarray([40, 57, 400])
    parts = budgets.shares(layers, 4)
    row = np.asarray(budgets.of_row(budget, prompts))
    due = [33] * 3 if budget == 33 else np.ceil(budget * prompts - 1e-9)
    assert row.tolist() == list(due)
    each = np.asarray(budgets.of_layers(row, parts))
    assert (each >= 1).all() and (each.sum(1) == 4 * row).all()
    most = budgets.most(budget, 400, parts)
    assert (each <= np.asarray(most)).all()
    alone = np.floor(row[:, None] * np.asarray(parts) / budgets.PARTS)
    assert layers == "uniform" or (alone.sum(1) != 4 * row).any()


def test_a_pyramid_falls_by_equal_steps():
    """PyramidKV's: from 2 - 1 / 20 of the average to 1 / 20."""
    parts = np.asarray(budgets.shares("pyramid", 8)) / budgets.PARTS
    assert abs(parts - np.linspace(1.95, 0.05, 8)).max() < 2 / budgets.PARTS


def test_numbers_that_are_not_one_a_layer():
    with pytest.raises(MethodError, match="2 numbers, and 3 layers"):
        budgets.shares((1, 2), 3)
