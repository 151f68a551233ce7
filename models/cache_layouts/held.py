"""Layers that hold fewer slots than a row has seen tokens: sliding windows.

A layer with a window of W tokens never reads older ones, so it needs W slots, not one
for every token. Slots stay logical everywhere else (`Block.slots`, `Visibility.prefix`,
`KVCache.pos`): token t of a row is in slot `t - shift` of the layer that holds it, and
the layer translates. Committed slots remain a prefix, as every kernel expects; there is
no modular ring.

Once in `EVERY` tokens of a row its oldest slots are dropped and the others move down.
What is dropped no node can see, so the text does not depend on when this happens.
Neither drafters, trees nor verifiers know of it.

On a mesh a held layer is laid out as a dense one: rows over the batch's axes, KV heads
over `tensor`, and each row's shift beside it. Every device drops the slots of its own
rows, so this takes no collective.

Only dense layers are held: those of the target, and of a draft model that
`drafters/model` runs. The quantised and paged layouts keep all slots of a window. So do
other drafters' caches: PEARL and EasySpec set their length back, and dropped slots do
not return.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from models import base
from models.cache_layouts.kv_cache import DenseLayer, KVCache
from models.distributed import sharding
from models.errors import ConfigError

EVERY = 128  # tokens of a row between compactions
STEP = 128  # slots: capacities are multiples, as the kernels' blocks of keys are


@struct.dataclass
class HeldLayer:
    """A layer's newest slots: token t of row b is in slot `t - shift[b]` of `store`."""

    store: DenseLayer  # C slots
    shift: Array  # int32[B]: tokens without a slot, the row's oldest
    size: int = struct.field(pytree_node=False)  # S, logical slots
    window: int = struct.field(pytree_node=False)  # W, in tokens
    every: int = struct.field(pytree_node=False)  # tokens between compactions

    streamed = DenseLayer.streamed
    shares = False
    span = 0

    @property
    def capacity(self) -> int:
        return self.store.slots

    def append(self, slots: Array, k: Array, v: Array) -> "HeldLayer":
        """Write `k`, `v` `[B, N, G, d]` at logical `slots[B, N]`; drop those >= S."""
        return replace(self, store=self.store.append(self._own(slots), k, v))

    def read(self) -> tuple[Array, Array]:
        """Return keys and values `[B, G, C, d]` of the layer's own slots."""
        return self.store.read()

    def view(self, mask: Array) -> Array:
        """Return bool[B, N, C], the layer's own slots of a logical mask [B, N, S]."""
        at = self._logical()[:, None]
        return jnp.take_along_axis(mask, at, axis=2, mode="fill", fill_value=False)

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; arguments as in `kv_cache.DenseLayer.attend`.

        `seen` and `key_positions` int32[B, S] are logical.
        """
        own = jnp.take_along_axis(key_positions, self._logical(), axis=1, mode="clip")
        seen = replace(seen, prefix=seen.prefix - self.shift)
        return self.store.attend(q, seen, positions, own, **settings)

    def move(self, source: Array, target: Array) -> "HeldLayer":
        """Copy logical slots `source[B, M]` to `target[B, M]`; drop targets >= S."""
        source = source - self.shift[:, None]
        return replace(self, store=self.store.move(source, self._own(target)))

    def settle(self, before: Array, length: Array) -> "HeldLayer":
        """Drop what no later node sees, in rows that passed a multiple of `every`.

        Args:
            before: int32[B], tokens seen before the commit.
            length: int32[B], tokens seen; later nodes have this position or a later
                one, and see `window` tokens with their own.
        """
        return sharding.by_shard(
            HeldLayer._settle, (self, length), (self.axes(), "batch")
        )

    def take(self, index: Array, shift: Array) -> "HeldLayer":
        """Let slot j be what slot `index[b, j]` was, and `shift` the tokens without."""
        return replace(self, store=self.store.take(index), shift=shift)

    def grown(self, more: int) -> "HeldLayer":
        """Add `more` empty slots."""
        return replace(self.sized(self.capacity + more), size=self.size + more)

    def sized(self, slots: int) -> "HeldLayer":
        """Return the layer with `slots` slots of its own, at least those it uses."""
        return replace(self, store=self.store.sized(slots))

    def gather(self, rows: Array) -> "HeldLayer":
        return replace(self, store=self.store.gather(rows), shift=self.shift[rows])

    def axes(self) -> Any:
        names: dict[str, Any] = {"store": self.store.axes(), "shift": "batch"}
        return replace(self, **names)

    def _settle(self, length: Array) -> "HeldLayer":
        due = jnp.maximum(length // self.every * self.every - self.window, self.shift)

        # A loop of one round at most: XLA copies what both branches of a `cond` write.
        def behind(layer: HeldLayer) -> Array:
            return (layer.shift < due).any()

        def compact(layer: HeldLayer) -> HeldLayer:
            index = jnp.arange(layer.capacity, dtype=jnp.int32)
            return layer.take((due - layer.shift)[:, None] + index, due)

        return lax.while_loop(behind, compact, self)

    def _logical(self) -> Array:
        """Return int32[B, C]: the logical slots of the layer's own."""
        return self.shift[:, None] + jnp.arange(self.capacity, dtype=jnp.int32)

    def _own(self, slots: Array) -> Array:
        """Translate logical slots [B, N]; those without a slot get distinct ones >= C.

        Distinct, since `append` promises XLA that indices are unique.
        """
        own = slots - self.shift[:, None]
        none = (slots >= self.size) | (own < 0)
        return jnp.where(none, self.capacity + slots, own)


def layer(store: DenseLayer, size: int, window: int) -> HeldLayer:
    """Make the layer of a window of tokens in an empty `store`, of `size` slots."""
    shift = jnp.zeros(store.k.shape[:1], jnp.int32)
    return HeldLayer(store, shift, size, window, EVERY)


def capacity(window: int, width: int) -> int:
    """Count the slots of a layer of `window` tokens whose calls write <= `width`."""
    return -(-(window + EVERY + width) // STEP) * STEP


def windows_of(config: Any) -> Sequence[int]:
    """Return the windows of a model's layers that may be held: none with ALiBi.

    ALiBi reads a cache whole, with a bias for every logical slot. So do latent heads.
    """
    if getattr(config, "position", "") == "alibi" or getattr(config, "kv_rank", 0):
        return ()
    return getattr(config, "every_window", ())


def full_heads(config: Any) -> tuple[int, int]:
    """Return what the layers without a window cache: KV heads, and a key's numbers.

    Policies have one rule for these layers.

    Raises:
        ConfigError: they differ.
    """
    windows = windows_of(config) or (0,) * config.n_layers
    full = [i for i, window in enumerate(windows) if not window]
    cached = getattr(config, "cached", lambda i: (config.n_kv_heads, config.head_dim))
    sizes = set(map(cached, full or range(config.n_layers)))
    if len(sizes) > 1:
        raise ConfigError(
            f"full layers of {sorted(sizes)} KV heads and numbers of a key: a policy "
            "needs layers that are alike; use caches/dense"
        )
    return sizes.pop()


def widened(tree: Any, width: int) -> Any:
    """Give the windows of a tree the slots for calls that write `width`."""

    def one(x: Any) -> Any:
        if not _is_window(x):
            return x
        slots = min(capacity(x.window, width), x.size)
        return x.sized(max(slots, x.capacity))

    return jax.tree.map(one, tree, is_leaf=_is_held)


def narrowed(tree: Any, like: Any) -> Any:
    """Give the windows of a tree as many slots as those of `like` have.

    After a commit a row uses less than its window and `every` slots of a layer.
    """

    def one(x: Any, like: Any) -> Any:
        return x.sized(like.capacity) if _is_window(x) else x

    return jax.tree.map(one, tree, like, is_leaf=_is_held)


def _is_held(x: Any) -> bool:
    return isinstance(x, HeldLayer)


def _is_window(x: Any) -> bool:
    return _is_held(x) and x.window > 0


def windowed(
    make: Callable[[], KVCache], windows: Sequence[int], width: int
) -> KVCache:
    """Make the cache that `make` makes, but whose dense layers hold their windows only.

    Layers without a window, and those of which this would save no slot, are whole.

    Args:
        make: makes an empty cache. It is traced only, if a layer is held: the whole
            cache need not fit.
        windows: each layer's window in tokens, 0 for full attention; or empty.
        width: the most slots from `length` on that one call or round writes.
    """
    like = jax.eval_shape(make)
    dense = all(isinstance(x, DenseLayer) for x in like.layers)
    saved = [w and capacity(w, width) < like.size for w in windows]
    if not dense or not any(saved):
        return make()

    def made(whole: Any, window: int, holds: Any) -> Any:
        shape = list(whole.k.shape)
        if holds:
            shape[2] = capacity(window, width)
        store = DenseLayer(*(jnp.zeros(shape, x.dtype) for x in (whole.k, whole.v)))
        return layer(store, like.size, window) if holds else store

    return KVCache(
        tuple(map(made, like.layers, windows, saved)),
        jnp.full(like.pos.shape, -1, jnp.int32),
        jnp.zeros(like.length.shape, jnp.int32),
    )
