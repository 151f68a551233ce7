"""JetSpec's fan-out by the distance of the two best tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.topologies import jetspec
from decoding.tree_building import tables
from models.errors import MethodError

SURE, UNSURE = (-0.01, -6.0, -7.0, -8.0), (-1.2, -1.3, -1.4, -1.5)


def grown(order: tuple, nodes: int = 12, **fields) -> list[int]:
    """Children of the root, and of the best node of depth 1, of a marginal table."""
    logq = jnp.asarray([order], jnp.float32)[:, :, None]
    tokens = jnp.broadcast_to(jnp.arange(4, dtype=jnp.int32), logq.shape)
    following = jnp.zeros_like(tokens).at[:, -1].set(-1)
    table = tables.Table(tokens, logq, following)
    topology = jetspec.topology(nodes=nodes, depth=len(order), children=4, **fields)
    _, parents, there = topology.tabled.grow(table)
    found = np.asarray(parents[0])[np.asarray(there[0])].tolist()
    return [found.count(0), found.count(1)]


def test_children_by_depth():
    """Sure: max(1, round(4 sigmoid(-4.99))) = 1; unsure: round(4 sigmoid(0.9)) = 3."""
    assert grown((SURE, UNSURE), gap=True) == [1, 3]
    assert grown((UNSURE, SURE), gap=True) == [3, 1]
    assert grown((SURE, UNSURE)) == [4, 4]  # planted: no gap


def test_the_budget_cuts_the_last_children():
    assert grown((UNSURE, UNSURE), nodes=7) == [4, 2]


def test_one_child_cannot_differ():
    with pytest.raises(MethodError, match="children=1"):
        jetspec.topology(children=1, gap=True)
