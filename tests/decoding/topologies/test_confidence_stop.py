"""The confident chain: where it ends, what it calls, and its law."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.topologies import confidence_stop
from decoding.verifiers import rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

VERIFIER = rejection.verifier()
GAMMA = float(np.median(kit.Q.max(1))) + 1e-3  # two of the four laws are surer


def test_it_ends_after_the_first_unsure_draft():
    topology = confidence_stop.topology(4, GAMMA, base.IID)
    nodes = kit.grown(topology, 200, kit.Q, 0)
    lengths = set()
    for row in range(200):
        (longest,) = kit.paths(nodes, row)[-1:]
        sure = [kit.Q[x].max() >= GAMMA for x in (0, *longest)]
        stop = sure.index(False) if False in sure[:4] else 4
        assert len(longest) == min(stop + 1, 4)
        assert int(nodes.calls[row]) == len(longest) - 1
        lengths.add(len(longest))
    assert len(lengths) > 1 or kit.Q[0].max() < GAMMA


def test_the_ends_of_the_threshold():
    for gamma, length in ((0.0, 4), (1.0, 1)):
        topology = confidence_stop.topology(4, gamma)
        assert topology.linear
        nodes = kit.grown(topology, 2, kit.Q, 0)
        assert (np.asarray(nodes.kind).sum(1) - 1 == length).all()


def test_law():
    topology = confidence_stop.topology(3, GAMMA, base.IID)
    accepted, fit = kit.accepted_and_fit(topology, VERIFIER)
    assert fit > kit.LEVEL and accepted > 0.2


def test_fault_the_unlikely_draft_is_dropped():
    """Planted: the draft that ends the chain, if itself unlikely, is left out."""
    topology = confidence_stop.topology(2, 0.0, base.IID)
    sound = topology.expand

    def expand(keys, state, nodes, logits, noise, level):
        nodes, state = sound(keys, state, nodes, logits, noise, level)
        q = jnp.exp(logits[:, 0] - jnp.log(jnp.exp(logits[:, 0]).sum(1, keepdims=True)))
        drawn = jnp.take_along_axis(q, nodes.tokens[:, level + 1, None], 1)[:, 0]
        kept = (drawn >= 0.4) & (nodes.kind[:, level] == base.CANDIDATE)
        kind = nodes.kind.at[:, level + 1].set(jnp.where(kept, base.CANDIDATE, 0))
        return nodes.replace(kind=kind), state

    fit = kit.accepted_and_fit(topology._replace(expand=expand), VERIFIER)[1]
    assert fit < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="length=0"):
        confidence_stop.topology(0)
    with pytest.raises(MethodError, match="threshold=-1"):
        confidence_stop.topology(threshold=-1.0)
