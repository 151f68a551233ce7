"""Which form of attention a model call takes over its cache.

Short caches on CPU are read whole, with a mask for every slot (`layers.attend`). Long
ones, and accelerators that have a kernel, go through `kernels.tree_attention`, which
never makes an array of nodes times slots. ALiBi and slot masks exist in the first form
only.
"""

from collections.abc import Callable
from typing import Any

from jax import Array

from kernels import tree_attention as trees
from models import base, layers
from models.config import Config

LONG = 4096  # slots of a cache from which its masks are not made whole


def whole(config: Config, block: base.Block, size: int, kernel: str) -> bool:
    """Whether a call takes the form that makes a mask of every slot."""
    if config.position == "alibi" or block.visibility.slot_mask is not None:
        return True
    return not trees.runs_kernel(kernel) and size < LONG


def over_cache(
    config: Config, block: base.Block, cache: Any, kernel: str
) -> Callable[[int], Callable[[Array, Any], Array]]:
    """`over_cache(...)(i)(q, store)`: what layer i's q `[B, N, G, R, d]` reads.

    The result is `[B, N, H * d]`. `cache` has noted the block's positions, and `store`
    is the layer with the block's keys. What layers share is made once, when `i` is
    given.
    """
    seen = block.visibility
    if whole(config, block, cache.size, kernel):
        mask = base.dense_mask(seen, cache.size)
        views = layers.Views(config, block.positions, cache.pos, mask)

        def masked(i: int) -> Callable[[Array, Any], Array]:
            mask = views.window(config.window(i))

            def attend(q: Array, store: Any) -> Array:
                k, v = store.read()
                return layers.attend(config, q, k, v, mask, views.bias)

            return attend

        return masked

    def streamed(i: int) -> Callable[[Array, Any], Array]:
        def attend(q: Array, store: Any) -> Array:
            batch, nodes, *_, dim = q.shape
            k, v = store.read()
            out, _ = trees.tree_attention(
                q.reshape(batch, nodes, -1, dim),
                k,
                v,
                seen.prefix,
                seen.ancestors,
                positions=block.positions,
                key_positions=cache.pos,
                window=config.window(i),
                softcap=config.attention_softcap,
                kernel=kernel,
            )
            return out.reshape(batch, nodes, -1)

        return attend

    return streamed
