"""The reference of paged tree attention: every row's pages copied out in order."""

from typing import Any

import einops
import jax.numpy as jnp
from jax import Array

from kernels.tree_attention import reference


def written_out(pool: Array, table: Array) -> Array:
    """Copy the pages of each row from a pool [P, G, page, d] to [B, G, S, d]."""
    if table.ndim == 3:
        heads = jnp.arange(table.shape[1])[:, None] % pool.shape[1]
        rows = pool.at[table, heads].get(mode="clip")
        return einops.rearrange(rows, "b g pages s d -> b g (pages s) d")
    rows = pool.at[table].get(mode="clip")
    return einops.rearrange(rows, "b pages g s d -> b g (pages s) d")


def paged_tree_attention(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    lengths: Array,
    ancestors: Array,
    **settings: Any,
) -> tuple[Array, Array]:
    """Compute `api.paged_tree_attention`; arguments as there."""
    k, v = written_out(k, table), written_out(v, table)
    if table.ndim == 3:
        return _by_head(q, k, v, lengths, ancestors, **settings)
    return reference.tree_attention(q, k, v, lengths, ancestors, **settings)


def _by_head(
    q: Array, k: Array, v: Array, lengths: Array, ancestors: Array, **settings: Any
) -> tuple[Array, Array]:
    """Compute one KV head at a time: their lengths and key positions may differ."""
    held, parts, groups = settings.pop("key_positions", None), [], k.shape[1]
    for g, queries in enumerate(jnp.split(q, groups, 2)):
        own = lengths[:, g] if lengths.ndim == 2 else lengths
        tokens = held[:, g] if held is not None and held.ndim == 3 else held
        keys, values = k[:, g : g + 1], v[:, g : g + 1]
        parts.append(
            reference.tree_attention(
                queries, keys, values, own, ancestors, key_positions=tokens, **settings
            )
        )
    out, lse = zip(*parts)
    return jnp.concatenate(out, 2), jnp.concatenate(lse, 2)
