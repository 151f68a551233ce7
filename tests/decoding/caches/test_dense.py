"""The full cache: nodes follow the prefix, and the accepted path is kept in order."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.caches import dense
from decoding.tree_design import tree_shape
from models.base import dense_mask
from models.cache_layouts import kv_cache

pytestmark = pytest.mark.kv

SHAPE = tree_shape.Shape(
    ((0,), (1,), (0, 0), (1, 0))
)  # nodes 1 2 | 3 under 1, 4 under 2


def filled(lengths: list[int], size: int = 12) -> kv_cache.KVCache:
    """A cache of one layer in which slot s of row b holds the key 100 b + s."""
    batch = len(lengths)
    held = jnp.arange(size, dtype=jnp.float32) + 100 * jnp.arange(batch)[:, None]
    held = held[:, None, :, None]
    pos = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
    layer = kv_cache.DenseLayer(held, held)
    return kv_cache.KVCache((layer,), pos, jnp.array(lengths, jnp.int32))


def nodes(batch: int) -> base.TokenTree:
    return SHAPE.tree(jnp.zeros((batch, 5), jnp.int32), base.POINT)


def test_nodes_follow_the_prefix_and_see_their_ancestors():
    policy, cache = dense.policy(), filled([4, 6])
    slots, seen = policy.place((), cache, nodes(2))
    assert slots[1].tolist() == [6, 7, 8, 9, 10]
    mask = np.asarray(dense_mask(seen, 12))
    assert np.flatnonzero(mask[0, 4]).tolist() == [0, 1, 2, 3, 4, 6, 8]
    assert np.flatnonzero(mask[1, 3]).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def kept(path: list[int], count: int, shift: int = 0) -> tuple[list, int]:
    """The keys of row 0 after it committed `path[:count]` from length 4."""
    policy, cache = dense.policy(), filled([4, 6])
    verdict = base.Verdict(
        jnp.array([path, [0, 0]]) + shift, jnp.array([count, -1]), jnp.zeros(2)
    )
    out: Any = None
    outcome = base.Outcome(nodes(2), verdict, out, None, jnp.array([True, False]))
    cache, _ = policy.retain((), cache, outcome)
    assert int(cache.length[1]) == 6  # a count of -1 keeps nothing
    assert cache.layers[0].k[1, 0, :, 0].tolist() == list(range(100, 112))
    length = int(cache.length[0])
    return cache.layers[0].k[0, 0, :length, 0].tolist(), length


@pytest.mark.parametrize(
    ("path", "count", "expected"),
    [
        ([0, 0], 0, [0, 1, 2, 3, 4]),
        ([2, 0], 1, [0, 1, 2, 3, 4, 6]),
        ([2, 4], 2, [0, 1, 2, 3, 4, 6, 8]),
    ],
)
def test_the_accepted_path_is_kept(path, count, expected):
    assert kept(path, count) == (expected, len(expected))


def test_fault_path_off_by_one():
    """Planted: the neighbours of the accepted nodes are kept."""
    assert kept([1, 3], 2, shift=1) != kept([1, 3], 2)
