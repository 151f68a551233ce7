"""Attention of a model call over its cache, in one of two forms.

Short caches on CPU are read whole, with a mask for every slot (`modules.attend`). Long
ones, and accelerators that have a kernel, use `kernels.tree_attention`, which never
makes an array of nodes times slots. ALiBi and slot masks exist in the first form only,
quantised and paged caches in the second.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kernels import tree_attention as trees
from models import base
from models.cache_layouts import latent, paired
from models.cache_layouts.held import HeldLayer
from models.cache_layouts.kept import KeptLayer
from models.distributed import sharding
from models.errors import ConfigError
from models.transformer import modules
from models.transformer.config import Config

LONG = 4096  # slots: no whole masks for caches of this size or larger


def whole(config: Config, block: base.Block, size: int, kernel: str) -> bool:
    """Return whether a call reads the cache whole, with a mask for every slot."""
    if must_be_whole(config, block):
        return True
    return not trees.runs_kernel(kernel) and size < LONG


def must_be_whole(config: Config, block: base.Block) -> bool:
    """Return whether a call must read the cache whole: ALiBi, latents, slot masks."""
    if config.position == "alibi" or config.kv_rank:
        return True
    return block.visibility.slot_mask is not None


def over_cache(
    config: Config, block: base.Block, cache: Any, kernel: str
) -> Callable[[int], Callable[[Array, Any], Array]]:
    """Prepare attention over a cache: `over_cache(...)(i)(q, store)` for layer i.

    Args:
        config: the transformer's config.
        block: the block of nodes.
        cache: holds the block's positions already.
        kernel: "auto", "pallas" or "xla".

    Returns:
        A function of i. Its result maps q `[B, N, G, R, d]` and the layer's `store`,
        with the block's keys, to `[B, N, H * d]`. Layers share their masks.
    """
    seen = block.visibility
    streams = any(layer.streamed for layer in cache.layers)
    if streams and must_be_whole(config, block):
        raise ConfigError(
            "ALiBi, latent heads and policies with slot masks must read a cache whole, "
            "which this layout does not support: use the dense cache"
        )
    if not streams and whole(config, block, cache.size, kernel):
        mask = base.dense_mask(seen, cache.size)
        views = modules.Views(config, block.positions, cache.pos, mask)
        turns = (
            modules.rotations(config, cache.pos, cache.size) if config.kv_rank else []
        )

        def masked(i: int) -> Callable[[Array, Any], Array]:
            mask = views.window(config.window(i))

            def attend(
                q: Array,
                store: Any,
                basis: Array | None = None,
                sinks: Array | None = None,
            ) -> Array:
                store = paired.lent(cache, i, store)
                k, v = store.read()
                if basis is not None:
                    k, v = latent.expand(k, v, basis)
                    k = modules.turned(k, turns[config.rope(i)])
                own = store.view(mask) if isinstance(store, HeldLayer) else mask
                bias = views.bias
                if isinstance(store, KeptLayer) and store.bias is not None:
                    bias = store.bias.swapaxes(0, 1)[:, None, :, None]
                return modules.attend(config, q, k, v, own, bias, sinks)

            return attend

        return masked

    def streamed(i: int) -> Callable[[Array, Any], Array]:
        def attend(q: Array, store: Any, sinks: Array | None = None) -> Array:
            store = paired.lent(cache, i, store)

            def run(q, store, seen, positions, key_positions, sinks):
                out, lse = store.attend(
                    q.reshape(*q.shape[:2], -1, q.shape[4]),
                    seen,
                    positions,
                    key_positions,
                    window=config.window(i),
                    softcap=config.attention_softcap,
                    kernel=kernel,
                )
                out = out.reshape(*q.shape[:-1], -1)
                if sinks is None:
                    return out
                # All parts of the keys are merged in `out`: the sink counts once.
                lse = lse.reshape(q.shape[:-1]).astype(jnp.float32)
                part = jax.nn.sigmoid(lse - sinks.astype(jnp.float32))
                return (out * part[..., None]).astype(out.dtype)

            rows = jax.tree.map(lambda x: "batch", seen)
            heads = None if sinks is None else "kv_heads heads"
            head_axes = "batch - kv_heads heads -"
            axes = (head_axes, store.axes(), rows, "batch", "batch", heads)
            arrays = (q, store, seen, block.positions, cache.pos, sinks)
            return sharding.by_shard(run, arrays, axes).reshape(*q.shape[:2], -1)

        return attend

    return streamed
