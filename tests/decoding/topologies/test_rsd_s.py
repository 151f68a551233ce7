"""Stochastic beam search: a worked level, sampling without replacement, and the law."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.conformance import laws
from decoding.topologies import rsd_s
from decoding.verifiers import recursive_rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

VERIFIER = recursive_rejection.verifier()


def test_conditioned_by_hand():
    """-log(e^-G - e^-Z + e^-g) for G = 0.5 and g = (2, 1, -1); 2 becomes G itself."""
    noisy = jnp.array([2.0, 1.0, -1.0, -jnp.inf])
    got = rsd_s.conditioned(jnp.array([0.5]), noisy)
    with np.errstate(over="ignore", divide="ignore"):
        expected = -np.log(np.exp(-0.5) - np.exp(-2) + np.exp(-np.asarray(noisy)))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert got[0] == 0.5 and got[3] == -jnp.inf
    close = rsd_s.conditioned(jnp.array([-30.0]), jnp.array([5.0, 5.0 - 1e-6, 4.0]))
    assert (np.diff(close) <= 0).all() and jnp.isfinite(close).all()


def test_a_beam_search_without_noise():
    """POINT: the two best paths of each length among those that extend kept ones."""
    topology = rsd_s.topology(2, 3, base.POINT)
    found = kit.paths(kit.grown(topology, 1, kit.Q, 0))
    beam = [()]
    for _ in range(3):
        every = [(*path, x) for path in beam for x in range(kit.V)]
        beam = sorted(every, key=kit.value, reverse=True)[:2]
        assert found[:2] == beam
        found = found[2:]


def test_the_sequences_are_a_sample_without_replacement():
    """Of the 16 texts of 2 tokens, in order: P(a, b) = v_a v_b / (1 - v_a)."""
    nodes = kit.grown(rsd_s.topology(2, 2), kit.N, kit.Q, 0)
    tokens, parents = np.asarray(nodes.tokens), np.asarray(nodes.parents)
    first = np.take_along_axis(tokens, parents[:, 3:], 1)
    text = first * kit.V + tokens[:, 3:]
    pairs = np.zeros((16, 16), np.int64)
    np.add.at(pairs, tuple(text.T), 1)
    v = np.array([kit.value(p) for p in itertools.product(range(kit.V), repeat=2)])
    law = v[:, None] * v[None] / (1 - v[:, None])
    np.fill_diagonal(law, 0)
    assert laws.chi_square(pairs, law) > kit.LEVEL


@pytest.mark.parametrize("width", [1, 3])
def test_law(width):
    topology = rsd_s.topology(width, 2)
    assert topology.linear == (width == 1)
    accepted, fit = kit.accepted_and_fit(topology, VERIFIER)
    assert fit > kit.LEVEL
    assert 0.3 < accepted < 2


def test_a_law_with_few_tokens():
    """Two tokens have q > 0: of four places a level the rest are padding."""
    q = np.zeros((4, 4))
    q[:, :2] = [0.7, 0.3]
    topology = rsd_s.topology(4, 1)
    nodes = kit.grown(topology, 50, q, 0)
    assert (np.asarray(nodes.kind[:, 1:]) == [[1, 1, 0, 0]]).all()
    assert (np.sort(np.asarray(nodes.tokens[:, 1:3]), 1) == [[0, 1]]).all()
    assert kit.accepted_and_fit(topology, VERIFIER, q=q)[1] > kit.LEVEL


def test_fault_siblings_in_the_order_of_q(monkeypatch):
    """Planted: the beam is filled by q, as if what was drawn had no order."""
    sound = rsd_s.node_ranking.best_children

    def by_phi(values, width):
        local, tokens, best = sound(values, width)
        order = jnp.argsort(-jnp.log(jnp.asarray(kit.Q))[0, tokens], 1)
        swap = lambda x: jnp.take_along_axis(x, order, 1)
        return swap(local), swap(tokens), swap(best)

    monkeypatch.setattr(rsd_s.node_ranking, "best_children", by_phi)
    assert kit.accepted_and_fit(rsd_s.topology(3, 1), VERIFIER)[1] < kit.FAULT


def test_fault_independent_noise(monkeypatch):
    """Planted: children are not conditioned on their parent. Each node's children are
    an honest sample still, but the first text of the beam is no sample of q."""
    monkeypatch.setattr(rsd_s, "conditioned", lambda top, noisy: noisy)
    nodes = kit.grown(rsd_s.topology(2, 2), kit.N, kit.Q, 0)
    tokens, parents = np.asarray(nodes.tokens), np.asarray(nodes.parents)
    first = np.take_along_axis(tokens, parents[:, 3:4], 1)[:, 0]
    best = np.bincount(first * kit.V + tokens[:, 3], minlength=16)
    v = [kit.value(p) for p in itertools.product(range(kit.V), repeat=2)]
    assert laws.chi_square(best, np.array(v)) < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="draw='iid'"):
        rsd_s.topology(draw=base.IID)
    with pytest.raises(MethodError, match="width=0"):
        rsd_s.topology(0)
