"""SpecInfer's expansion: its shape, independent siblings, and both its verifiers."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.conformance import laws
from decoding.topologies import specinfer
from decoding.verifiers import recursive_rejection, spectr
from models.errors import MethodError
from tests.decoding.topologies import kit


def test_the_paper_s_configuration():
    """<1, 1, 3, 1, 1, 1, 1, 1>: two nodes, and then three chains of six."""
    topology = specinfer.topology()
    assert topology.widths == (1, 1, 1, 3, 3, 3, 3, 3, 3)
    assert (topology.nodes, topology.depth, topology.draw) == (21, 8, base.IID)


def test_siblings_are_independent():
    nodes = kit.grown(specinfer.topology((2,)), kit.N, kit.Q, 0)
    pairs = np.zeros((kit.V, kit.V), np.int64)
    np.add.at(pairs, tuple(np.asarray(nodes.tokens[:, 1:]).T), 1)
    law = kit.Q[0][:, None] * kit.Q[0]
    assert laws.chi_square(pairs, law) > kit.LEVEL


@pytest.mark.parametrize("verifier", [recursive_rejection, spectr])
def test_law(verifier):
    topology = specinfer.topology((2, 2))
    accepted, fit = kit.accepted_and_fit(topology, verifier.verifier())
    assert fit > kit.LEVEL and accepted > 0.3


def test_fault_repeated_drafts_dropped():
    """Planted: a draft that repeats its sibling is left out, and the others are tested
    as independent ones: what is left of them is not."""
    sound = recursive_rejection.verifier()

    def verify(key, state, nodes, target):
        same = (nodes.tokens[:, None] == nodes.tokens) & (
            nodes.parents[:, None] == nodes.parents
        )
        kind = jnp.where(jnp.tril(same, -1).any(1), base.PAD, nodes.kind)
        return sound.verify(key, state, nodes.replace(kind=kind), target)

    faulty = sound._replace(verify=verify)
    fit = kit.accepted_and_fit(specinfer.topology((3,)), faulty)[1]
    assert fit < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="expansion"):
        specinfer.topology((2, 0))
    with pytest.raises(MethodError, match="no_replace"):
        specinfer.topology((2,), base.NO_REPLACE)
