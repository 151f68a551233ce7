"""The reference of tree attention, in plain jnp, which every other form must match.

Node `n` of row `b` sees slot `s` of the cache when

    s < lengths[b],  or  bit s - lengths[b] of ancestors[b, n] is set,

and, with a window, when `positions[b, n] - key_positions[b, s] < window`. Its output is
the softmax-weighted mean of the visible values. `lse` is the log of the sum of the
exponentials, by which parts of a cache merge (`kernels.merge_softmax`). A node without
a visible slot has output 0 and `lse` -inf. The content of slots that no node sees never
matters, NaN included.
"""

import einops
import jax.numpy as jnp
from jax import Array

from kernels import int4_packing


def visible(
    size: int,
    lengths: Array,
    ancestors: Array,
    positions: Array | None = None,
    key_positions: Array | None = None,
    window: int = 0,
) -> Array:
    """Return bool[B, N, S]: the slots that each node sees; arguments as in `api`."""
    offset = jnp.arange(size, dtype=jnp.int32) - lengths[:, None]
    words = ancestors.shape[-1]
    word = jnp.clip(offset >> 5, 0, words - 1)
    chosen = jnp.take_along_axis(ancestors, word[:, None, :], 2)
    bit = (chosen >> (offset & 31).astype(jnp.uint32)[:, None, :]) & 1
    in_tree = (offset >= 0) & (offset < 32 * words)
    seen = (offset < 0)[:, None] | (in_tree[:, None] & (bit == 1))
    if window:
        assert positions is not None and key_positions is not None
        seen &= positions[:, :, None] - key_positions[:, None, :] < window
    return seen


def tree_attention(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    *,
    positions: Array | None = None,
    key_positions: Array | None = None,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, Array]:
    """Compute `api.tree_attention`; arguments as there."""
    if int4_packing.packed(k.dtype):
        k, v = int4_packing.unpack(k), int4_packing.unpack(v)
    size = k.shape[2]
    seen = visible(size, lengths, ancestors, positions, key_positions, window)
    return attend(q, k, v, seen, softcap, scale, k_scale, v_scale, bias)


def attend(
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    softcap: float = 0.0,
    scale: float = 1.0,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, Array]:
    """Compute attention under a mask `seen` bool[B, N, S]; else as `tree_attention`."""
    groups = k.shape[1]
    used = seen.any(1)[:, None, :, None]
    k = jnp.where(used, k.astype(jnp.float32), 0)
    v = jnp.where(used, v.astype(jnp.float32), 0)
    if k_scale is not None:
        k = k * jnp.where(used[..., 0], k_scale, 0)[..., None]
    if v_scale is not None:
        v = v * jnp.where(used[..., 0], v_scale, 0)[..., None]
    q5 = einops.rearrange(q.astype(jnp.float32), "b n (g r) d -> b n g r d", g=groups)
    s = jnp.einsum("bngrd,bgsd->bngrs", q5, k, precision="highest") * scale
    if softcap:
        s = jnp.tanh(s / softcap) * softcap
    if bias is not None:
        s = s + bias[:, None, :, None]
    s = jnp.where(seen[:, :, None, None], s, -jnp.inf)
    top = s.max(-1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    p = jnp.exp(s - top)
    total = p.sum(-1, keepdims=True)
    out = jnp.einsum("bngrs,bgsd->bngrd", p, v, precision="highest")
    out = out / jnp.where(total == 0, 1.0, total)
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(total))[..., 0]
    out = einops.rearrange(out, "b n g r d -> b n (g r) d").astype(q.dtype)
    return out, einops.rearrange(lse, "b n g r -> b n (g r)")
