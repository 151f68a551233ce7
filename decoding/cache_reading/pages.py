"""Summaries of pages of keys, each made once, when committed tokens have filled it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from models.cache_layouts.sparse import SparseLayer


def filled(
    layer: SparseLayer,
    before: Array,
    length: Array,
    page: int,
    summary: Callable[[Array], dict[str, Array]],
) -> SparseLayer:
    """Write the summaries of the pages that tokens `before` to `length` have filled.

    Args:
        layer: its `extra` has an array [B, G, P, ...] for each name of a summary.
        before: int32[B]: tokens seen before.
        length: int32[B]: and now.
        page: tokens of a page.
        summary: of a page's keys float32[B, G, page, d]: name -> [B, G, ...].
    """
    k = layer.store.read()[0]
    rows, groups = jnp.arange(k.shape[0])[:, None], jnp.arange(k.shape[1])[None]
    due = length // page

    def behind(carry: tuple) -> Array:
        return (carry[1] < due).any()

    def fill(carry: tuple) -> tuple:
        held, at = carry
        slots = at[:, None] * page + jnp.arange(page, dtype=jnp.int32)
        index = rows[..., None], groups[..., None], slots[:, None]
        new = summary(k.at[index].get(mode="clip").astype(jnp.float32))

        def put(x: Array, new: Array) -> Array:
            to = jnp.where(at < due, at, x.shape[2])[:, None]
            return x.at[rows, groups, to].set(new, mode="drop", unique_indices=True)

        held = {name: put(x, new[name]) for name, x in held.items()}
        return held, jnp.minimum(at + 1, due)

    like = summary(jnp.zeros((*k.shape[:2], page, k.shape[3]), jnp.float32))
    held = {name: layer.extra[name] for name in like}
    held, _ = lax.while_loop(behind, fill, (held, before // page))
    return layer.replace(extra={**layer.extra, **held})  # type: ignore[attr-defined]
