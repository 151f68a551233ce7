"""RSD-C: the shape, and siblings without replacement through both levels."""

import numpy as np
import pytest

from decoding import base
from decoding.topologies import rsd_c, specinfer
from decoding.verifiers import recursive_rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

VERIFIER = recursive_rejection.verifier()


def test_shape():
    topology = rsd_c.topology((3, 2, 1))
    assert topology.widths == (1, 3, 6, 6) and topology.draw == base.NO_REPLACE
    assert rsd_c.topology().nodes == 31


def test_siblings_differ():
    tokens = np.asarray(kit.grown(rsd_c.topology((2, 2)), kit.N, kit.Q, 0).tokens)
    for i in (1, 3, 5):
        assert (tokens[:, i] != tokens[:, i + 1]).all()


def test_law_and_more_acceptance_than_with_replacement():
    accepted, fit = kit.accepted_and_fit(rsd_c.topology((2, 2)), VERIFIER)
    assert fit > kit.LEVEL
    other = kit.accepted_and_fit(specinfer.topology((2, 2)), VERIFIER)[0]
    assert accepted > other


def test_fault_said_to_be_independent():
    """Planted: the tree says that its siblings were drawn with replacement."""
    wrong = rsd_c.topology((2, 2))
    sound = wrong.expand

    def expand(keys, state, nodes, *rest):
        nodes, state = sound(keys, state, nodes, *rest)
        return nodes.replace(draw=base.IID), state

    fit = kit.accepted_and_fit(wrong._replace(expand=expand), VERIFIER)[1]
    assert fit < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="branching"):
        rsd_c.topology(())
    with pytest.raises(MethodError, match="iid"):
        rsd_c.topology((2,), base.IID)
