"""The meaning of paged tree attention: the pages of every row written out in order."""

from typing import Any

import einops
from jax import Array

from kernels.tree_attention import reference


def written_out(pool: Array, table: Array) -> Array:
    """[B, G, S, d] of a pool [P, G, page, d]."""
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
    """As `api.paged_tree_attention`; `settings` as there."""
    k, v = written_out(k, table), written_out(v, table)
    return reference.tree_attention(q, k, v, lengths, ancestors, **settings)
