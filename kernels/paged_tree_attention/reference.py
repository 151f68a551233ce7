"""The meaning of paged tree attention: the pages of every row written out in order."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from kernels.tree_attention import reference


def written_out(pool: Array, table: Array) -> Array:
    """[B, G, S, d] of a pool [P, G, page, d]."""
    batch, columns = table.shape
    _, groups, page, dim = pool.shape
    rows = pool.at[table].get(mode="clip")
    return jnp.moveaxis(rows, 2, 1).reshape(batch, groups, columns * page, dim)


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
