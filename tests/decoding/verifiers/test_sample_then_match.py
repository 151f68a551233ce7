"""Sample-then-match: acceptance is the target's mass on the children."""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.conformance import laws
from decoding.verifiers import sample_then_match
from tests import oracles

N = 100_000  # seed 0; 4 standard errors


def test_point_children_are_accepted_with_their_mass():
    verifier = sample_then_match.verifier()
    tokens, ranks = oracles.simulate(verifier, base.POINT, 2, N)
    assert oracles.within(ranks[0], N, 0.05) and oracles.within(ranks[1], N, 0.15)
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_one_sampled_child_is_accepted_when_both_draw_it():
    """P(accept) = sum of p q = 0.175 for independent draws of p and q."""
    tokens, ranks = oracles.simulate(sample_then_match.verifier(), base.IID, 1, N)
    assert oracles.within(ranks.sum(), N, float((oracles.P * oracles.Q).sum()))
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_fault_one_draw_for_every_candidate():
    """Planted, as in REST's code: r rows draw apart, and accept with 1 - (1 - p)^r."""
    sound = sample_then_match.verifier()

    def verify(key, state, nodes, target):
        keys = jax.random.split(key, 2)
        tries = jax.vmap(lambda k: sound.verify(k, state, nodes, target))(keys)
        best = jnp.argmax(tries.count)
        return jax.tree.map(lambda x: x[best], tries)

    faulty = sound._replace(verify=verify)
    tokens, _ = oracles.simulate(faulty, base.POINT, 1, N)
    assert laws.chi_square(tokens, oracles.P) < 1e-6
