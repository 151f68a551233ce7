"""Column sums as loops over the cache: weights of one stretch of slots at a time."""

from typing import Any

import einops
import jax.numpy as jnp
from jax import Array, lax

STRETCH = 512  # slots
LEAST, UNSEEN = -1e30, -2e30  # a query without a slot keeps LEAST, and weights of 0


def columns(
    q: Array,
    k: Array,
    weight: Array,
    query_positions: Array,
    key_positions: Array,
    *,
    lse: Array | None = None,
    noise: Any = None,
    reduce: str = "sum",
    softcap: float = 0.0,
    bias: Array | None = None,
    sinks: Array | None = None,
    stretch: int = STRETCH,
) -> Array:
    """Compute `api.columns`; arguments as there."""
    groups, size = k.shape[1:3]
    count, heads = q.shape[1:3]
    copies = heads // groups
    stretch = min(stretch, size)
    dtype = jnp.promote_types(q.dtype, jnp.bfloat16)
    folded = einops.rearrange(q, "b m (g r) d -> b g (m r) d", g=groups).astype(dtype)
    steps = -(-size // stretch)

    def scores(j: Array) -> tuple[Array, Array, Array]:
        """Return the stretch's first slot, scores [B, G, M, R, s] and what is new."""
        # The last stretch is moved back into the cache; slots seen before are masked.
        at = jnp.minimum(j * stretch, size - stretch)
        part = lambda x: lax.dynamic_slice_in_dim(x, at, stretch, 2)
        s = lax.dot_general(
            folded,
            part(k).astype(dtype),
            (((3,), (3,)), ((0, 1), (0, 1))),
            preferred_element_type=jnp.float32,
        )
        if softcap:
            s = jnp.tanh(s / softcap) * softcap
        if bias is not None:
            s = s + part(bias)[:, :, None]
        s = einops.rearrange(s, "b g (m r) s -> b g m r s", m=count)
        held = part(key_positions)
        if noise is not None:
            s = s + noise(query_positions, held)
        slot = at + jnp.arange(stretch, dtype=jnp.int32)
        new = slot >= j * stretch
        seen = (held >= 0)[:, :, None]
        seen &= held[:, :, None] <= query_positions[:, None, :, None]
        return at, jnp.where(seen[:, :, :, None], s, UNSEEN), new

    if lse is None:

        def fold(j: Array, carry: tuple) -> tuple:
            top, total = carry
            _, s, new = scores(j)
            s = jnp.where(new, s, UNSEEN)
            high = jnp.maximum(top, s.max(-1))
            total = total * jnp.exp(top - high) + jnp.exp(s - high[..., None]).sum(-1)
            return high, total

        shape = (q.shape[0], groups, count, copies)
        begin = (jnp.full(shape, LEAST), jnp.zeros(shape))
        if sinks is not None:
            first = einops.rearrange(sinks, "b (g r) -> b g 1 r", g=groups)
            begin = (jnp.broadcast_to(first, shape), jnp.ones(shape))
        top, total = lax.fori_loop(0, steps, fold, begin)
        lse = top + jnp.log(jnp.where(total == 0, 1.0, total))
    else:
        # Of -inf, a query without a slot, the difference from UNSEEN would be inf.
        lse = jnp.maximum(lse, LEAST)
        lse = einops.rearrange(lse, "b m (g r) -> b g m r", g=groups)
    scale = weight[:, None, :, None, None]

    def put(j: Array, out: Array) -> Array:
        at, s, _ = scores(j)
        p = jnp.exp(s - lse[..., None]) * scale
        p = p.max((2, 3)) if reduce == "max" else p.sum((2, 3))
        return lax.dynamic_update_slice_in_dim(out, p, at, 2)

    return lax.fori_loop(0, steps, put, jnp.zeros(k.shape[:3], jnp.float32))
