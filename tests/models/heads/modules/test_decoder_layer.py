"""A draft head's layer over a block: every form of attention gives the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base
from models.heads.modules import decoder_layer
from models.transformer import cached_attention
from tests.models import blocks, small

ROWS, SLOTS = 2, 64
PARENTS = np.tile([-1, 0, 0, 2], (ROWS, 1))
LENGTHS = np.array([5, 0])
C = decoder_layer.geometry(small.CONFIG)
LAYER = decoder_layer.init_layer(jax.random.key(0), C)
X = jax.random.normal(jax.random.key(1), (ROWS, 9, C.d_model))


def outputs(kernel: str, parents=PARENTS) -> np.ndarray:
    """A tree behind ragged texts, of which row 1 has none."""

    @jax.jit
    def run():
        cache = decoder_layer.cache(LAYER, ROWS, SLOTS)
        text = base.causal_block(
            jnp.zeros((ROWS, 5), jnp.int32), cache.length, jnp.asarray(LENGTHS), SLOTS
        )
        cache = decoder_layer.block(LAYER, C, cache, X[:, :5], X[:, :5], text)[1]
        none = jnp.zeros((ROWS, 0), jnp.int32)
        cache = cache.commit(none, jnp.asarray(LENGTHS) - 1, linear=True)
        nodes = blocks.tree_block(parents, parents, LENGTHS)
        return decoder_layer.block(LAYER, C, cache, X[:, 5:], X[:, 5:], nodes)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_layer, "AUTO", kernel)
        if kernel == "xla":  # in pieces, as long caches are read
            patch.setattr(cached_attention, "LONG", 1)
        return np.asarray(run())


def test_forms_agree():
    """Planted: the last node's parent is another."""
    masked = outputs("auto")
    for kernel in ("xla", "pallas"):
        np.testing.assert_allclose(outputs(kernel), masked, rtol=1e-5, atol=1e-5)
    other = PARENTS.copy()
    other[:, 3] = 1
    wrong = outputs("xla", other)
    assert np.abs(wrong[:, 3] - masked[:, 3]).max() > 1e-3
