"""The reference of column sums, in plain jnp, with the whole array of weights.

Query `m` of row `b` sees slot `s` of KV head `g` when the slot holds a token that is
not younger: `0 <= key_positions[b, g, s] <= query_positions[b, m]`.
"""

import einops
import jax.numpy as jnp
from jax import Array


def columns(
    q: Array,
    k: Array,
    weight: Array,
    query_positions: Array,
    key_positions: Array,
    *,
    lse: Array | None = None,
    noise: Array | None = None,
    reduce: str = "sum",
    softcap: float = 0.0,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """Compute `api.columns`; arguments as there, but `noise` float32[B, M, H, S]."""
    groups = k.shape[1]
    q5 = einops.rearrange(q.astype(jnp.float32), "b m (g r) d -> b g r m d", g=groups)
    s = jnp.einsum("bgrmd,bgsd->bgrms", q5, k.astype(jnp.float32), precision="highest")
    if softcap:
        s = jnp.tanh(s / softcap) * softcap
    if bias is not None:
        s = s + bias[:, :, None, None]
    if noise is not None:
        s = s + einops.rearrange(noise, "b m (g r) s -> b g r m s", g=groups)
    seen = key_positions[:, :, None] <= query_positions[:, None, :, None]
    seen = (seen & (key_positions >= 0)[:, :, None])[:, :, None]
    s = jnp.where(seen, s, -jnp.inf)
    if lse is None:
        top = s.max(-1, keepdims=True)
        top = jnp.where(top == -jnp.inf, 0.0, top)
        total = jnp.exp(s - top).sum(-1, keepdims=True)
        if sinks is not None:
            total = total + jnp.exp(
                einops.rearrange(sinks, "b (g r) -> b g r 1 1", g=groups) - top
            )
        p = jnp.exp(s - top) / jnp.where(total == 0, 1.0, total)
    else:
        known = einops.rearrange(lse, "b m (g r) -> b g r m 1", g=groups)
        p = jnp.where(seen, jnp.exp(s - known), 0.0)
    p = p * weight[:, None, None, :, None]
    return p.max((2, 3)) if reduce == "max" else p.sum((2, 3))
