"""Greedy verification walks the arg-max path."""

import jax
import jax.numpy as jnp
import pytest

from decoding import base
from decoding.verifiers import greedy, rejection
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


def test_rows_of_temperature_0_among_sampled_ones():
    """The greedy verdict there, its own elsewhere; planted: its own everywhere."""
    drafts = oracles.siblings(jnp.array([1]), base.POINT, jnp.zeros(4))
    nodes = drafts.replace(linear=True, depth=1)
    sampling = rejection.verifier()
    mixed = greedy.in_rows(sampling)

    def tokens(part, is_sampled: bool) -> list[int]:
        target = oracles.target(oracles.P, 2)._replace(sampled=jnp.bool_(is_sampled))
        verdicts = [
            part.verify(jax.random.key(seed), base.State(), nodes, target)
            for seed in range(8)
        ]
        return [int(v.token) + 10 * int(v.count) for v in verdicts]

    assert tokens(mixed, False) == [0] * 8  # the best token, not the draft 1
    assert tokens(mixed, True) == tokens(sampling, True)
    assert tokens(sampling, False) != [0] * 8
