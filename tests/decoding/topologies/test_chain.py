"""A chain is the static tree of one path."""

import pytest

from decoding import base
from decoding.topologies import chain, static
from models.errors import MethodError


@pytest.mark.parametrize("draw", base.DRAWS)
def test_shape(draw):
    topology = chain.topology(4, draw)
    assert (topology.nodes, topology.depth, topology.widths) == (5, 4, (1,) * 5)
    assert topology.linear and topology.draw == draw


def test_fault_a_fork():
    """Planted: one sibling more, and the tree is no chain."""
    assert static.topology(((0,), (0, 0))).linear
    assert not static.topology(((0,), (1,), (0, 0))).linear


def test_bad_arguments():
    with pytest.raises(MethodError, match="length=0"):
        chain.topology(0)
