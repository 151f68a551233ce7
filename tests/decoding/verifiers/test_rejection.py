"""Speculative sampling against its closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, tree
from decoding.conformance import laws
from decoding.verifiers import rejection
from models.errors import MethodError
from tests import oracles

N = 100_000  # seed 0; 4 standard errors, so that a sound build fails 6 times in 10^5


def test_closed_form_gives_the_golden_numbers():
    law, accepted = oracles.recursive(oracles.P, oracles.Q, 1, base.IID)
    np.testing.assert_allclose(law, oracles.P, atol=1e-9)
    assert abs(accepted.sum() - 0.5) < 1e-9
    assert abs(accepted.sum() - np.minimum(oracles.P, oracles.Q).sum()) < 1e-9


@pytest.mark.parametrize("draw", [base.IID, base.NO_REPLACE])
def test_acceptance_is_one_minus_the_distance(draw):
    tokens, ranks = oracles.simulate(rejection.verifier(), draw, 1, N)
    assert oracles.within(ranks.sum(), N, 0.5)
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_a_point_draft_is_accepted_with_its_probability():
    tokens, ranks = oracles.simulate(rejection.verifier(), base.POINT, 1, N)
    assert oracles.within(ranks.sum(), N, 0.05)  # the arg-max of q is token 3
    assert laws.chi_square(tokens, oracles.P) > 1e-4


def test_the_draws_decide_by_hand():
    """p = q accepts; p(x) = 0 rejects, and emits the residual; PAD is not tested."""
    zero, sure = jnp.zeros(4), jnp.array([0.0, -jnp.inf, -jnp.inf, -jnp.inf])
    verify = rejection.verifier().verify

    def run(p, q, count=1, seed=0):
        chain = tree.chain(
            jnp.zeros(1, jnp.int32),
            jnp.ones((1, 1), jnp.int32),
            jnp.array([count]),
            draw=base.IID,
            logits=jnp.stack([q, q])[None],
        )
        row = jax.tree.map(lambda x: x[0] if jnp.ndim(x) else x, chain)
        target = base.Target(jnp.stack([p, p]), {}, lambda depth: zero)
        return verify(jax.random.key(seed), base.State(), row, target)

    assert [int(run(zero, zero, seed=s).count) for s in range(20)] == [1] * 20
    rejected = run(sure, zero)
    assert int(rejected.count) == 0 and int(rejected.token) == 0
    assert int(run(zero, zero, count=0).count) == 0


def test_siblings_are_refused():
    nodes = oracles.siblings(jnp.array([1, 2]), base.IID, jnp.zeros(4))
    with pytest.raises(MethodError, match="recursive_rejection"):
        rejection.verifier().verify(
            jax.random.key(0), base.State(), nodes, oracles.target(oracles.P, 3)
        )


def test_fault_resampling_from_p():
    """Planted: after a rejection the token is drawn from p, not from the residual."""
    sound = rejection.verifier()

    def verify(key, state, nodes, target):
        verdict = sound.verify(key, state, nodes, target)
        again = jax.random.categorical(jax.random.fold_in(key, 9), target.logits[0])
        return verdict.replace(token=again.astype(jnp.int32))

    faulty = sound._replace(verify=verify)
    tokens, _ = oracles.simulate(faulty, base.IID, 1, N)
    assert laws.chi_square(tokens, oracles.P) < 1e-6
