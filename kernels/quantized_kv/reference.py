"""The reference of attention over a quantised cache: both stores joined, and masked."""

import jax.numpy as jnp
from jax import Array

from kernels.quantized_kv.api import Old, Recent, boundary
from kernels.quantized_kv.codes import widen
from kernels.tree_attention import reference


def attention(
    q: Array,
    old: Old,
    recent: Recent,
    lengths: Array,
    ancestors: Array,
    positions: Array,
    key_positions: Array,
    *,
    keep: int,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """Compute `api.attention`; arguments as there."""
    size = key_positions.shape[1]
    first = boundary(positions, keep)[..., None]
    exact = jnp.arange(size) >= first  # by node and slot
    every = reference.visible(
        size, lengths, ancestors, positions, key_positions, window
    )
    rows = recent.base[:, None] + jnp.arange(recent.k.shape[2])
    there = (rows < size)[:, None]
    rows = jnp.broadcast_to(
        jnp.minimum(rows, size - 1)[:, None], (*q.shape[:2], rows.shape[1])
    )
    near = jnp.take_along_axis(every & exact, rows, 2) & there
    k = widen(old.k, old.k_scale) * old.channel[:, :, None]
    v = widen(old.v, old.v_scale)
    k = jnp.concatenate([k, recent.k.astype(jnp.float32)], 2)
    v = jnp.concatenate([v, recent.v.astype(jnp.float32)], 2)
    mask = jnp.concatenate([every & ~exact, near], 2)
    return reference.attend(q, k, v, mask, softcap, scale)
