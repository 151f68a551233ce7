"""PPD's dynamic sparse trees: the published example, and the chain of their states."""

import numpy as np
import pytest

from decoding.tree_design import ppd_sparse_trees, tree_shape
from models.errors import MethodError

# Hits by rank of Vicuna-7B's three prompts, which the published trees were made of.
HITS = (
    (0.48335, 0.14342, 0.0736, 0.0454, 0.03087, 0.02155, 0.01658, 0.01323, 0.00932)
    + (0.00845,),
    (0.26256, 0.14561, 0.08114, 0.0576, 0.04283, 0.0323, 0.0257, 0.02152, 0.01903)
    + (0.0155,),
    (0.1641, 0.1176, 0.0809, 0.0578, 0.0459, 0.0367, 0.0313, 0.0232, 0.0237, 0.0179),
)


def test_the_published_trees_for_sixty():
    """10, 20, 20 candidates with 30, 40, 40 prompts; how many at each depth."""
    found = ppd_sparse_trees.sparse(HITS, 60, (10, 20, 20))
    depths = tree_shape.Shape(found.choices).depths
    histogram = {1: (10,), 2: (8, 12), 3: (8, 10, 2)}
    for s, prompts in ((1, 30), (2, 40), (3, 40)):
        own = np.asarray(found.plan[s - 1])
        there = own >= 0
        there[0] = False
        assert own[there].sum() == prompts and own[there].min() >= 1
        assert tuple(np.bincount(depths[there])[1:]) == histogram[s]
        assert own[0] == 3
    searched = ppd_sparse_trees.sparse(HITS, 60)
    assert searched.tokens >= found.tokens


def simulated(found: ppd_sparse_trees.Sparse, rounds: int, seed: int) -> float:
    """Tokens a round of texts whose hits at every depth are independent."""
    rng = np.random.default_rng(seed)
    shape = tree_shape.Shape(found.choices)
    index = {c: i + 1 for i, c in enumerate(shape.choices)}
    ranks = [np.append(np.cumsum(h), 1.0) for h in HITS]
    state, accepted = 3, 0
    drawn = rng.random((rounds, 3))
    for row in drawn:
        path: tuple[int, ...] = ()
        plan = found.plan[state - 1]
        for d in range(3):
            below = (*path, int(np.searchsorted(ranks[d], row[d])))
            if plan[index[below]] < 0 if below in index else True:
                break
            path = below
        accepted += len(path)
        state = plan[index[path]] if path else 3
    return 1 + accepted / rounds


def test_what_is_expected_is_what_happens():
    """n = 40,000 rounds, seed 0: the deviation of a round is below 1, so that 0.02 is
    four standard errors."""
    found = ppd_sparse_trees.sparse(HITS, 28)
    tokens = simulated(found, 40_000, 0)
    assert abs(tokens - found.tokens) < 0.02
    v = ppd_sparse_trees.values(HITS, found.choices)
    first = sum(v[c] for c, n in zip(found.choices, found.plan[0][1:]) if n >= 0)
    assert abs(tokens - 1 - first) > 0.02  # planted: every round in the first state


def test_the_official_wasted_round():
    """One prompt and candidates right with V = 0.8: 1 + V tokens a round, for there is
    one state; with a wasted round after 1 - V of them, 1 + V / (2 - V)."""
    found = ppd_sparse_trees.sparse(((0.5, 0.3, 0.1),), 4)
    assert found.choices == ((0,), (1,)) and abs(found.tokens - 1.8) < 1e-9
    official = ppd_sparse_trees.sparse(((0.5, 0.3, 0.1),), 4, official=True)
    assert abs(official.tokens - (1 + 0.8 / 1.2)) < 1e-9
    np.testing.assert_allclose(official.shares, (1 / 1.2, 0.2 / 1.2))
    official = ppd_sparse_trees.sparse(HITS, 28, official=True)
    happens = simulated(official, 40_000, 0)
    assert happens - official.tokens > 0.02  # planted: taken for what happens


# Of one prompt, two candidates and prompts more each: 1.5, 1.7, 1.8, 1.85 tokens.
MADE = {n: ppd_sparse_trees.sparse(((0.5, 0.2, 0.1, 0.05),), n) for n in (8, 6, 4, 2)}


@pytest.mark.parametrize(
    ("seconds", "budget"),
    [
        ((1.0, 1.0, 1.0, 1.0), 8),  # a round costs what it costs
        ((2.0, 4.0, 6.0, 8.0), 2),  # every node costs the same
        ((1.0, 1.1, 1.2, 1.3), 4),  # 1.5, 1.545, 1.5, 1.42 tokens a second
    ],
)
def test_the_fastest_budget(seconds, budget):
    tokens = [MADE[n].tokens for n in (2, 4, 6, 8)]
    np.testing.assert_allclose(tokens, (1.5, 1.7, 1.8, 1.85))
    assert ppd_sparse_trees.fastest(MADE, dict(zip((2, 4, 6, 8), seconds))) == budget
    # Planted: tokens alone always choose the largest.
    most = max(MADE, key=lambda n: MADE[n].tokens)
    assert (most == budget) == (len(set(seconds)) == 1)


def test_paths_end_somewhere():
    """The ends of a tree add up to the hits of the root's children."""
    found = ppd_sparse_trees.sparse(HITS, 40)
    v = ppd_sparse_trees.values(HITS, found.choices)
    w = ppd_sparse_trees.ends(v)
    first = sum(value for path, value in v.items() if len(path) == 1)
    np.testing.assert_allclose(sum(w.values()), first)
    assert min(w.values()) >= 0
    assert abs(sum(found.shares) - 1) < 1e-9


def test_bad_budgets():
    with pytest.raises(MethodError, match="budget=3 for 3 prompts"):
        ppd_sparse_trees.sparse(HITS, 3)
    with pytest.raises(MethodError, match="leave room for 5"):
        ppd_sparse_trees.sparse(HITS, 15, (5, 10, 10))
    with pytest.raises(MethodError, match="2 sizes for 3 states"):
        ppd_sparse_trees.sparse(HITS, 15, (5, 10))
    for seconds in ({2: 1.0}, {2: 1.0, 4: 0.0, 6: 1.0, 8: 1.0}):
        with pytest.raises(MethodError, match="above 0"):
            ppd_sparse_trees.fastest(MADE, seconds)
