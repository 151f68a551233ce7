"""Gumbel coupling: coupled drafts are accepted often, and none changes the token."""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.conformance import laws
from decoding.verifiers import gumbel_coupled
from tests import oracles

N = 100_000  # seed 0; 4 standard errors


def test_coupled_acceptance():
    """P(accept) = sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x)."""
    p, q = oracles.P, oracles.Q
    exact = sum(1 / max_sum for max_sum in _sums(p, q))
    assert abs(exact - 0.4425969) < 1e-7
    tokens, ranks = oracles.simulate(gumbel_coupled.verifier(), base.COUPLED, 1, N)
    assert oracles.within(ranks.sum(), N, exact)
    assert laws.chi_square(tokens, p) > 1e-4
    distance = 1 - abs(p - q).sum() / 2
    assert exact >= distance / (2 - distance)  # (1 - TV) / (1 + TV)


def _sums(p, q):
    ratios = zip(p, q)
    return [sum(max(a / x, b / y) for a, b in zip(p, q)) for x, y in ratios]


def test_no_draft_changes_the_token():
    noise = jax.random.gumbel(jax.random.key(3), (4,))
    best = int(jnp.argmax(jnp.log(jnp.asarray(oracles.P)) + noise))
    verify = gumbel_coupled.verifier().verify
    for draft in range(4):
        nodes = oracles.siblings(jnp.array([draft]), base.POINT, jnp.zeros(4))
        at = oracles.target(oracles.P, 2, lambda depth: jnp.where(depth, -noise, noise))
        verdict = verify(jax.random.key(0), base.State(), nodes, at)
        assert int(verdict.count) == (draft == best)
        first = nodes.tokens[verdict.path[0]] if draft == best else verdict.token
        assert int(first) == best


def test_fault_draft_with_other_noise():
    """Planted: drafts coupled to another noise are accepted as independent ones are."""
    _, ranks = oracles.simulate(gumbel_coupled.verifier(), base.IID, 1, N)
    assert not oracles.within(ranks.sum(), N, 0.4425969)
    assert oracles.within(ranks.sum(), N, float((oracles.P * oracles.Q).sum()))
