"""The reference of paged tree attention: every row's pages copied out in order."""

from typing import Any

import einops
from jax import Array

from kernels.tree_attention import reference


def written_out(pool: Array, table: Array) -> Array:
    """Copy the pages of each row from a pool [P, G, page, d] to [B, G, S, d]."""
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
    return reference.tree_attention(q, k, v, lengths, ancestors, **settings)
