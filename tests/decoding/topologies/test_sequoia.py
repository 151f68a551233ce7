"""Sequoia's programme against brute force, and the tree through the verifier."""

import itertools

import numpy as np
import pytest

from decoding import base
from decoding.topologies import sequoia
from decoding.tree_design import tree_shape
from decoding.verifiers import recursive_rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

RATES = np.array([0.6, 0.2, 0.05])


def tokens(choices, rates=RATES) -> float:
    """Tokens a round of a tree: the chance of every node, the root's 1."""
    return 1 + sum(np.prod([rates[rank] for rank in path]) for path in choices)


def every_tree(size: int, depth: int):
    """All prefix-closed sets of `size` paths of ranks below 3, at most `depth` long."""
    paths = [
        p for d in range(1, depth + 1) for p in itertools.product(range(3), repeat=d)
    ]
    for choices in itertools.combinations(paths, size):
        try:
            tree_shape.Shape(choices)
        except MethodError:
            continue
        yield choices


def brute(budget: int, depth: int, rates=RATES) -> float:
    return max(tokens(c, rates) for c in every_tree(budget - 1, depth))


@pytest.mark.parametrize(("budget", "depth"), [(3, 3), (4, 3), (6, 2)])
def test_the_best_of_all_trees(budget, depth):
    choices, value = sequoia.best(RATES, budget, depth)
    assert len(choices) == budget - 1
    assert max(map(len, choices)) <= depth
    assert abs(value - tokens(choices)) < 1e-12
    assert abs(value - brute(budget, depth)) < 1e-12


def test_more_nodes_are_never_worse():
    values = [sequoia.best(RATES, budget, 6)[1] for budget in range(2, 20)]
    assert all(a < b for a, b in itertools.pairwise(values))


def test_a_sure_draft_gets_a_chain_and_a_poor_one_a_bush():
    assert sequoia.topology((0.95, 0.01), 6, 10).linear
    assert sequoia.topology((0.25,) * 4, 5, 10).widths == (1, 4)


def test_a_budget_beyond_the_largest_tree():
    """One rank and two levels have three nodes, whatever the budget."""
    assert sequoia.best(np.array([0.5]), 9, 2) == (((0,), (0, 0)), 1.75)


def test_law():
    topology = sequoia.topology((0.5, 0.2, 0.1), 6, 3)
    accepted, fit = kit.accepted_and_fit(topology, recursive_rejection.verifier())
    assert fit > kit.LEVEL and accepted > 0.3


def test_fault_another_measurement():
    """Planted: the tree of other rates is worse under these."""
    other, _ = sequoia.best(np.array([0.3, 0.3, 0.3]), 6, 3)
    assert tokens(other) < sequoia.best(RATES, 6, 3)[1] - 0.01


def test_bad_arguments():
    with pytest.raises(MethodError, match="acceptance"):
        sequoia.topology((0.9, 0.3))
    with pytest.raises(MethodError, match="budget=1"):
        sequoia.topology((0.9,), 1)
    with pytest.raises(MethodError, match="iid"):
        sequoia.topology((0.9,), draw=base.IID)
