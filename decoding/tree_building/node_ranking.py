"""Choosing the best children of a level, and the best nodes of a tree."""

import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab


def children(values: Array, k: int) -> tuple[Array, Array]:
    """The best `k` tokens of each node and their values, [B, w, k], in falling order.

    `values` float32[B, w, V]; what a vocabulary smaller than `k` lacks has -inf.
    """
    size = min(k, values.shape[-1])
    best, tokens = vocab.top_k(values, size)
    short = ((0, 0), (0, 0), (0, k - size))
    best = jnp.pad(best, short, constant_values=-jnp.inf)
    return best, jnp.pad(tokens, short)


def best(values: Array, width: int) -> tuple[Array, Array, Array]:
    """The best `width` of `values` [B, w, k]: their w, their k and they, [B, width].

    In falling order; among equals the first w, then the first k, comes first. What is
    lacking has -inf.
    """
    batch, _, k = values.shape
    flat = values.reshape(batch, -1)
    lacking = max(width - flat.shape[1], 0)
    flat = jnp.pad(flat, ((0, 0), (0, lacking)), constant_values=-jnp.inf)
    found, index = lax.top_k(flat, width)
    index = jnp.where(found > -jnp.inf, index, 0).astype(jnp.int32)
    return index // k, index % k, found


def best_children(values: Array, width: int) -> tuple[Array, Array, Array]:
    """Parent, token and value [B, width] of the best children of a level."""
    value, tokens = children(values, min(width, values.shape[-1]))
    local, rank, found = best(value, width)
    rows = jnp.arange(tokens.shape[0])[:, None]
    return local, tokens[rows, local, rank], found


def best_nodes(values: Array, kept: int) -> Array:
    """int32[B, kept]: the root and the best nodes, in rising order, -1 past the last.

    `values` float32[B, N], of which no node's exceeds its parent's nor, for siblings,
    the one before it; so parents and earlier siblings are kept with every node.
    """
    top = values.at[:, 0].set(jnp.inf)
    lacking = max(kept - values.shape[1], 0)
    top = jnp.pad(top, ((0, 0), (0, lacking)), constant_values=-jnp.inf)
    found, index = lax.top_k(top, kept)
    last = top.shape[1]
    index = jnp.sort(jnp.where(found > -jnp.inf, index, last), 1)
    return jnp.where(index < last, index, -1).astype(jnp.int32)
