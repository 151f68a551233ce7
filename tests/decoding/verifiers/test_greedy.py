"""Greedy verification walks the arg-max path."""

import jax
import jax.numpy as jnp
import pytest

from decoding import base
from decoding.verifiers import greedy
from tests import oracles


@pytest.mark.parametrize(("drafts", "node"), [((0, 1), 1), ((1, 0), 2), ((1, 2), 0)])
def test_the_child_with_the_best_token_is_taken(drafts, node):
    """The best token of p is 0."""
    nodes = oracles.siblings(jnp.array(drafts), base.POINT, jnp.zeros(4))
    verdict = greedy.verifier().verify(
        jax.random.key(0), base.State(), nodes, oracles.target(oracles.P, 3)
    )
    assert (int(verdict.count), int(verdict.path[0])) == (node > 0, node)
    assert int(verdict.token) == 0


def test_padding_is_never_accepted():
    nodes = oracles.siblings(jnp.array([0]), base.POINT, jnp.zeros(4))
    nodes = nodes.replace(kind=jnp.array([base.CANDIDATE, base.PAD]))
    verdict = greedy.verifier().verify(
        jax.random.key(0), base.State(), nodes, oracles.target(oracles.P, 2)
    )
    assert int(verdict.count) == 0


def test_fault_second_best():
    """Planted: a target whose best token is hidden takes another path."""
    nodes = oracles.siblings(jnp.array([0]), base.POINT, jnp.zeros(4))
    hidden = oracles.P.copy()
    hidden[0] = 0.0
    verdict = greedy.verifier().verify(
        jax.random.key(0), base.State(), nodes, oracles.target(hidden, 2)
    )
    assert int(verdict.count) == 0 and int(verdict.token) == 1
