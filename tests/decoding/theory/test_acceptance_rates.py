"""The closed forms, against enumeration and against the golden numbers.

Expectations over draws: 4000 paths, within 4.5 standard errors (16 comparisons), seed
0; a form that is exact is within 1e-9.
"""

import itertools

import numpy as np
import pytest

from decoding import base
from decoding.theory import acceptance_rates, optimal_transport
from tests import oracles

PAIRS = [
    (oracles.P, oracles.Q),
    *(tuple(np.random.default_rng(s).dirichlet(np.full(5, 0.6), 2)) for s in range(7)),
]
RNG = np.random.default_rng(0)


def near(value: acceptance_rates.Value, truth: float) -> bool:
    return abs(value.mean - truth) <= 4.5 * value.error + 1e-9


@pytest.mark.parametrize("k", [1, 2, 3])
def test_recursive(k):
    for p, q in PAIRS:
        with_, without = (
            oracles.recursive(p, q, k, d)[1].sum() for d in (base.IID, base.NO_REPLACE)
        )
        assert abs(acceptance_rates.recursive(p, q, k).mean - with_) < 1e-9
        assert near(acceptance_rates.recursive_without(p, q, k, RNG, 4000), without)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_k_seq_and_one_draft(k):
    for p, q in PAIRS:
        assert (
            abs(acceptance_rates.k_seq(p, q, k).mean - oracles.kseq(p, q, k)[1]) < 1e-9
        )
        bound = optimal_transport.acceptance(p, q, 1)
        assert abs(acceptance_rates.rejection(p, q).mean - bound) < 1e-9


def inclusion(q: np.ndarray, k: int) -> np.ndarray:
    """P(a token is among `k` draws without replacement), enumerated."""
    chance = np.zeros_like(q)
    for drawn in itertools.permutations(range(len(q)), k):
        weight, left = 1.0, 1.0
        for x in drawn:
            weight, left = weight * q[x] / left, left - q[x]
        chance[list(drawn)] += weight
    return chance


@pytest.mark.parametrize("k", [1, 2, 3])
def test_matched(k):
    for p, q in PAIRS:
        assert near(
            acceptance_rates.matched_without(p, q, k, RNG, 4000), inclusion(q, k) @ p
        )
        drawn = itertools.product(range(len(q)), repeat=k)
        truth = sum(q[list(x)].prod() * p[list(set(x))].sum() for x in drawn)
        assert abs(acceptance_rates.matched(p, q, k).mean - truth) < 1e-9
    assert acceptance_rates.point(oracles.P, oracles.Q, 2).mean == pytest.approx(0.2)


def test_coupled():
    """200,000 races, 4.5 standard errors; tokens that only one law has included."""
    some = np.array([0.4, 0.0, 0.35, 0.25]), np.array([0.1, 0.5, 0.4, 0.0])
    for p, q in [*PAIRS[:3], some]:
        noise = np.random.default_rng(1).gumbel(size=(200_000, len(p)))
        with np.errstate(divide="ignore"):
            same = (np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1)
        found, truth = acceptance_rates.coupled(p, q).mean, same.mean()
        assert abs(found - truth) < 4.5 * np.sqrt(truth * (1 - truth) / len(same))
        apart = optimal_transport.total_variation(p, q)
        assert (1 - apart) / (1 + apart) - 1e-9 <= found <= 1 - apart + 1e-9
        assert abs(acceptance_rates.coupled(p, p).mean - 1) < 1e-9


def test_a_law_that_runs_out():
    """Planted: more drafts than tokens; the fourth of three tokens accepts nothing."""
    q = np.array([0.5, 0.3, 0.2, 0.0])
    for k in (3, 4):
        assert near(acceptance_rates.matched_without(oracles.P, q, k, RNG, 4000), 0.95)
    rest = acceptance_rates.recursive_without(oracles.P, q, 4, RNG, 50).mean
    assert rest <= 0.95 + 1e-9


def test_fault_residual_with_replacement():
    """Planted: the residual's law of drafts with replacement is not that without."""
    without = acceptance_rates.recursive_without(oracles.P, oracles.Q, 3, RNG, 4000)
    assert not near(without, acceptance_rates.recursive(oracles.P, oracles.Q, 3).mean)
