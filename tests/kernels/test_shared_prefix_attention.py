"""Hydragen: prefixes read once, beside rows with their prefixes written out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import block_traffic
from kernels.shared_prefix_attention import Level, api, reference
from kernels.tree_attention import pallas_tpu
from models.base import pack_bits
from tests.kernels.cases import distance
from tests.kernels.test_traffic import shape_of

pytestmark = pytest.mark.kernels

OPTIONS = {"scale": 0.2, "softcap": 4.0}


def arguments():
    """Four rows of 3 nodes; one prefix of all, and one of each two, the second empty.

    Suffixes of 0, 7, 64 and 20 tokens; NaN in every slot that nobody sees.
    """
    rng = np.random.default_rng(0)

    def cache(batch, size, lengths, nodes=0):
        made = rng.normal(size=(2, batch, 2, size, 64)).astype(np.float32)
        for b, length in enumerate(lengths):
            made[:, b, :, length + nodes :] = np.nan
        return jnp.asarray(made[0]), jnp.asarray(made[1])

    lengths = [0, 7, 64, 20]
    q = jnp.asarray(rng.normal(size=(4, 3, 4, 64)), jnp.float32)
    levels = [
        Level(*cache(1, 160, [130]), jnp.array([130])),
        Level(*cache(2, 48, [48, 0]), jnp.array([48, 0])),
    ]
    tree = jnp.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    bits = jnp.broadcast_to(pack_bits(tree), (4, 3, 1))
    return q, levels, *cache(4, 80, lengths, 3), jnp.array(lengths), bits


@functools.cache
def expected():
    call = functools.partial(reference.shared_prefix_attention, **OPTIONS)
    return jax.jit(call)(*arguments())


@pytest.mark.parametrize("kernel", ["pallas", "xla"])
def test_computes_the_rows_written_out(kernel):
    call = functools.partial(api.shared_prefix_attention, kernel=kernel, **OPTIONS)
    got = jax.jit(call)(*arguments())
    assert distance(got, expected()) < 2e-6


def test_a_wrong_row_is_caught():
    """Planted: the inner prefixes exchanged, and a prefix one token short."""
    q, (outer, inner), *rest = arguments()
    call = jax.jit(
        functools.partial(api.shared_prefix_attention, kernel="xla", **OPTIONS)
    )
    exchanged = Level(inner.k[::-1], inner.v[::-1], inner.lengths[::-1])
    assert distance(call(q, (outer, exchanged), *rest), expected()) > 1e-3
    short = outer._replace(lengths=outer.lengths - 1)
    assert distance(call(q, (short, inner), *rest), expected()) > 1e-3
    three = Level(*(jnp.concatenate([x, x])[:3] for x in inner[:3]))
    with pytest.raises(ValueError, match="3 prefixes for 4 rows"):
        api.shared_prefix_attention(q, [three], *rest)


@pytest.mark.parametrize("size", [1024, 16384])
def test_a_prefix_is_read_once_for_the_batch(size):
    """256 rows: the bytes of one cache, where rows apart would read 256."""
    together = shape_of("8B", 1, size, 256)
    cut = pallas_tpu.plan(together, block_traffic.budget("v5e"))
    moved = cut.traffic(cut.bounds_at([size], nodes=0))
    assert moved["k"] == 8 * size * 128 * 2
    apart = pallas_tpu.plan(shape_of("8B", 256, size, 1), block_traffic.budget("v5e"))
    alone = apart.traffic(apart.bounds_at(np.full(256, size), nodes=0))
    assert alone["k"] == 256 * moved["k"]
