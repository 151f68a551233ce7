"""The transport bound: golden numbers, closed forms, and no verifier above it."""

import itertools

import numpy as np
import pytest

from decoding import base
from decoding.theory import optimal_transport
from models.errors import MethodError
from tests import oracles

GOLDEN = {
    base.IID: (0.5, 0.69, 0.771),
    base.NO_REPLACE: (0.5, 0.7345238095, 0.9488095238),
}
PAIRS = [
    tuple(np.random.default_rng(seed).dirichlet(np.full(5, 0.5), 2))
    for seed in range(20)
]


@pytest.mark.parametrize("draw", GOLDEN)
def test_golden_numbers(draw):
    for k, golden in enumerate(GOLDEN[draw], 1):
        bound = optimal_transport.acceptance(oracles.P, oracles.Q, k, draw)
        assert abs(bound - golden) < 1e-9


def test_one_draft_is_one_minus_the_distance():
    for p, q in PAIRS:
        expected = 1 - optimal_transport.total_variation(p, q)
        for draw in GOLDEN:
            assert abs(optimal_transport.acceptance(p, q, 1, draw) - expected) < 1e-9


def test_prefixes_of_the_ratio_are_enough():
    """The bound by all subsets is the bound by prefixes, for i.i.d. drafts."""
    for (p, q), k in itertools.product(PAIRS, (2, 3)):
        subsets = [np.array(b) for b in itertools.product([False, True], repeat=5)]
        least = min(p[h].sum() + 1 - q[h].sum() ** k for h in subsets)
        assert abs(optimal_transport.acceptance(p, q, k) - least) < 1e-9


@pytest.mark.parametrize("draw", GOLDEN)
def test_recursive_rejection_is_below(draw):
    for (p, q), k in itertools.product(PAIRS, (2, 3)):
        accepted = oracles.recursive(p, q, k, draw)[1].sum()
        assert accepted <= optimal_transport.acceptance(p, q, k, draw) + 1e-9


def test_k_seq_is_below_and_not_far():
    for (p, q), k in itertools.product(PAIRS, (1, 2, 3, 8)):
        bound, (_, accepted, law) = (
            optimal_transport.acceptance(p, q, k),
            oracles.kseq(p, q, k),
        )
        assert (1 - (1 - 1 / k) ** k) * bound - 1e-9 <= accepted <= bound + 1e-9
        np.testing.assert_allclose(law, p, atol=1e-9)


def test_fault_bound_of_another_draw():
    """Planted: the bound of i.i.d. drafts is too low for drafts without replacement."""
    accepted = oracles.recursive(oracles.P, oracles.Q, 3, base.NO_REPLACE)[1].sum()
    assert accepted > optimal_transport.acceptance(oracles.P, oracles.Q, 3, base.IID)


def test_a_draft_with_few_tokens_runs_out():
    """All three tokens of q are drawn: the target is met wherever q has a token."""
    q = np.array([0.5, 0.3, 0.2, 0.0])
    bound = optimal_transport.acceptance(oracles.P, q, 4, base.NO_REPLACE)
    assert abs(bound - 0.95) < 1e-9


def test_bad_arguments():
    with pytest.raises(MethodError, match="k=0"):
        optimal_transport.acceptance(oracles.P, oracles.Q, 0)
    with pytest.raises(MethodError, match="draw='point'"):
        optimal_transport.acceptance(oracles.P, oracles.Q, 1, base.POINT)
    with pytest.raises(MethodError, match="subsets"):
        optimal_transport.acceptance(
            np.ones(20) / 20, np.ones(20) / 20, 2, base.NO_REPLACE
        )
