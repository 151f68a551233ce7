"""Recursive rejection sampling against its enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.conformance import laws
from decoding.tree_building import child_sampling
from decoding.verifiers import recursive_rejection
from tests import oracles

N = 100_000  # seed 0; 4 standard errors
SAMPLED = [base.IID, base.NO_REPLACE]


@pytest.mark.parametrize("draw", SAMPLED)
def test_closed_form_gives_the_golden_numbers(draw):
    for k, golden in enumerate(oracles.GOLDEN[draw], 1):
        law, accepted = oracles.recursive(oracles.P, oracles.Q, k, draw)
        np.testing.assert_allclose(law, oracles.P, atol=1e-9)
        assert abs(accepted.sum() - golden) < 1e-9


@pytest.mark.parametrize("draw", SAMPLED)
def test_acceptance_of_every_sibling(draw):
    _, expected = oracles.recursive(oracles.P, oracles.Q, 3, draw)
    verifier = recursive_rejection.verifier()
    tokens, ranks = oracles.simulate(verifier, draw, 3, N)
    assert oracles.within(ranks.sum(), N, oracles.GOLDEN[draw][2])
    for count, chance in zip(ranks, expected):
        assert oracles.within(count, N, chance)
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_point_siblings_are_accepted_with_their_mass():
    """The two best of q are tokens 3 and 2: p = 0.05 + 0.15."""
    verifier = recursive_rejection.verifier()
    tokens, ranks = oracles.simulate(verifier, base.POINT, 2, N)
    assert oracles.within(ranks[0], N, 0.05) and oracles.within(ranks[1], N, 0.15)
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_it_stops_where_the_draft_has_no_more_tokens():
    """Three siblings of a law with two tokens: the third is no draw at all."""
    q = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0]))
    p = np.array([0.1, 0.1, 0.4, 0.4])
    verify = recursive_rejection.verifier().verify

    def one(key):
        drawn = child_sampling.candidates(
            base.NO_REPLACE, key[None], q[None, None], 3, jnp.zeros((1, 4))
        )[0, 0]
        nodes = oracles.siblings(drawn, base.NO_REPLACE, q)
        verdict = verify(key, base.State(), nodes, oracles.target(p, 4))
        return jnp.where(
            verdict.count > 0, nodes.tokens[verdict.path[0]], verdict.token
        ), verdict.path[0]

    keys = jax.random.split(jax.random.key(1), 20_000)
    tokens, node = jax.jit(jax.vmap(one))(keys)
    assert int(node.max()) <= 2
    assert laws.chi_square(np.bincount(tokens, minlength=4), p) > 1e-4


FAULTS = {
    "resort_by_q": lambda drawn, q: drawn[jnp.argsort(-q[drawn])],
    "keep_the_best_of_three": lambda drawn, q: drawn[jnp.argsort(-q[drawn])][:2],
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_order_that_looks_at_the_token(name, monkeypatch):
    sound = child_sampling.candidates

    def candidates(draw, keys, logits, k, noise):
        drawn = sound(draw, keys, logits, 3, noise)[0, 0]
        changed = FAULTS[name](drawn, logits[0, 0])
        return jnp.resize(changed, (1, 1, k))

    monkeypatch.setattr(child_sampling, "candidates", candidates)
    kept = 2 if name == "keep_the_best_of_three" else 3
    fresh = recursive_rejection.verifier()  # a new function: nothing is cached
    tokens, _ = oracles.simulate(fresh, base.NO_REPLACE, kept, N)
    assert laws.chi_square(tokens, oracles.P) < 1e-6


def test_fault_with_replacement_for_draws_without():
    sound = recursive_rejection.verifier()

    def verify(key, state, nodes, target):
        return sound.verify(key, state, nodes.replace(draw=base.IID), target)

    tokens, _ = oracles.simulate(sound._replace(verify=verify), base.NO_REPLACE, 3, N)
    assert laws.chi_square(tokens, oracles.P) < 1e-6
