"""Chunks of queries under masks that look ahead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from models.transformer import modules, sequence_attention
from tests.models.small import CONFIG

LENGTH = sequence_attention.CHUNK + 9


def test_chunks_read_as_far_as_the_mask_looks():
    """To 1e-5 of one product. Planted: chunks that end where a causal mask does."""
    keys = jax.random.split(jax.random.key(1), 3)
    q = jax.random.normal(keys[0], (1, LENGTH, 2, 2, 8))
    k, v = (jax.random.normal(key, (1, LENGTH, 2, 8)) for key in keys[1:])
    index = jnp.arange(LENGTH)
    near = (index <= index[:, None] + 5)[None]
    whole = jax.jit(functools.partial(modules.attend, CONFIG))
    for mask, ahead in ((near, 5), (jnp.ones_like(near), None)):
        wanted = whole(q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask)
        got, short = (
            sequence_attention.attend(CONFIG, q, k, v, mask, ahead=reach)
            for reach in (ahead, 0)
        )
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        assert jnp.abs(short - wanted).max() > 1e-2
