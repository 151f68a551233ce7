"""Attention of a model call over a cache whose layers may read few of their slots.

Calls without such layers are those of `cached_attention`, with nothing to pass from
layer to layer.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models import base
from models.cache_layouts import sparse
from models.distributed import sharding
from models.transformer.cached_attention import over_cache
from models.transformer.config import Config

Attend = Callable[..., tuple[Array, Any]]


def over_layers(
    config: Config, block: base.Block, cache: Any, kernel: str
) -> tuple[Callable[[int], Attend], Callable[[], Any]]:
    """Prepare attention of all layers; arguments as in `cached_attention.over_cache`.

    Returns:
        `attend` and `begin`. `attend(i)(q, store, carry)` maps q `[B, N, G, R, d]` of
        layer i and its `store` to `[B, N, H * d]`, and what passes to the next layer.
        `begin()` makes the first layer's carry.
    """
    usual = over_cache(config, block, cache, kernel)
    if not sparse.reads_few(cache.layers):

        def plain(i: int) -> Attend:
            read = usual(i)  # here: masks that layers share are not of a branch
            return lambda q, store, carry, **own: (read(q, store, **own), carry)

        return plain, _nothing
    seen = block.visibility
    mask = base.dense_mask(seen, cache.size)
    names, carried = sparse.axes()

    def attend(i: int) -> Attend:
        read = usual(i)

        def attend(q: Array, store: Any, carry: Any, **own: Any) -> tuple[Array, Any]:
            if not (isinstance(store, sparse.SparseLayer) and store.reads_few):
                return read(q, store, **own), carry

            def run(first: tuple, store: Any) -> tuple:
                asked, carry = first
                out, carry = store.read_few(asked, carry, config.attention_softcap)
                return asked._replace(q=out), carry

            asked = sparse.asked_of(q, mask, seen)
            both = (names, None if carry is None else carried)
            arrays = ((asked, carry), store)
            out, carry = sharding.by_shard(run, arrays, (both, store.axes()))
            if store.reader.role == sparse.SELECT:
                return read(q, store, **own), carry
            return out.q.reshape(*q.shape[:2], -1), carry

        return attend

    def begin() -> Any:
        first = sparse.first_to_select(cache.layers)
        if first is None:
            return None
        none = sparse.asked_of(mask[..., :0], mask, seen)
        return first.fresh(none)

    return attend, begin


def passed(gate: Array, before: Any, after: Any) -> Any:
    """Return what `attend` hands on, unchanged for nodes that pass a layer by.

    Args:
        gate: bool[B, N], those nodes.
        before: the layer's carry.
        after: what it hands on.
    """
    keep = lambda old, new: jnp.where(gate[:, None, :, None], old, new)
    return jax.tree.map(keep, before, after)


def _nothing() -> None:
    return None
