"""The best children of a level, and the best nodes of a tree."""

import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab


def children(values: Array, k: int) -> tuple[Array, Array]:
    """Return the values and tokens [B, w, k] of each node's best `k`, in falling order.

    `values` float32[B, w, V]. A vocabulary smaller than `k` is filled up with -inf.
    """
    size = min(k, values.shape[-1])
    best, tokens = vocab.top_k(values, size)
    short = ((0, 0), (0, 0), (0, k - size))
    best = jnp.pad(best, short, constant_values=-jnp.inf)
    return best, jnp.pad(tokens, short)


def best(values: Array, width: int) -> tuple[Array, Array, Array]:
    """Return the places in w and k, and the values, of the best `width`: [B, width].

    `values` [B, w, k]. In falling order; among equals the first w, then the first k,
    comes first. Fewer than `width` are filled up with -inf.
    """
    batch, _, k = values.shape
    flat = values.reshape(batch, -1)
    lacking = max(width - flat.shape[1], 0)
    flat = jnp.pad(flat, ((0, 0), (0, lacking)), constant_values=-jnp.inf)
    top, index = lax.top_k(flat, width)
    index = jnp.where(top > -jnp.inf, index, 0).astype(jnp.int32)
    return index // k, index % k, top


def best_children(values: Array, width: int) -> tuple[Array, Array, Array]:
    """Return parent, token and value [B, width] of a level's best children."""
    value, tokens = children(values, min(width, values.shape[-1]))
    local, rank, top = best(value, width)
    rows = jnp.arange(tokens.shape[0])[:, None]
    return local, tokens[rows, local, rank], top


def best_nodes(values: Array, kept: int) -> Array:
    """Return the root and the best nodes int32[B, kept], rising, -1 past the last.

    No node's value in `values` float32[B, N] may exceed its parent's or its earlier
    sibling's. So every node is kept with its parents and earlier siblings.
    """
    top = values.at[:, 0].set(jnp.inf)
    lacking = max(kept - values.shape[1], 0)
    top = jnp.pad(top, ((0, 0), (0, lacking)), constant_values=-jnp.inf)
    kept_values, index = lax.top_k(top, kept)
    last = top.shape[1]
    index = jnp.sort(jnp.where(kept_values > -jnp.inf, index, last), 1)
    return jnp.where(index < last, index, -1).astype(jnp.int32)
