"""The layout of rows that begin alike: their common prefix once, their rests apart.

The first slots of a cache, a whole number of the prompt's chunks, hold the same tokens
in every row: they are one array, which attention reads once for the batch (Hydragen,
`kernels/shared_prefix_attention`). A block lies wholly in the prefix, where rows are
prefilled side by side, or wholly behind it.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels.shared_prefix_attention import Level, shared_prefix_attention
from models import base
from models.cache_layouts import kv_cache
from models.errors import ConfigError


@struct.dataclass
class SharedLayer:
    """One layer: slot `s` is in the prefix below `P`, else in slot `s - P` of a row."""

    prefix: kv_cache.DenseLayer  # [1, G, P, d]
    rest: kv_cache.DenseLayer  # [B, G, S - P, d]

    streamed = True  # no layer is one array
    shares = False

    @property
    def start(self) -> int:
        """P"""
        return self.prefix.k.shape[2]

    def append(self, slots: Array, k: Array, v: Array) -> "SharedLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped.

        In the prefix rows agree, and the first one writes.
        """
        size = self.rest.k.shape[2]
        past = size + jnp.arange(slots.shape[1])
        behind = jnp.where(slots >= self.start, slots - self.start, past)
        first = jnp.where(slots[:1] < self.start, slots[:1], self.start + past)
        return SharedLayer(
            self.prefix.append(first, k[:1], v[:1]), self.rest.append(behind, k, v)
        )

    def read(self) -> tuple[Array, Array]:
        """Keys and values `[B, G, S, d]`, written out."""
        batch = self.rest.k.shape[0]
        pairs = zip(self.prefix.read(), self.rest.read())
        k, v = (jnp.concatenate([jnp.repeat(a, batch, 0), b], 2) for a, b in pairs)
        return k, v

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        *,
        window: int = 0,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """`(out, lse)` of q `[B, N, H, d]`; `settings` as in `tree_attention`."""
        if window:
            raise ConfigError(
                f"a layer with a window of {window} tokens and a shared prefix: use "
                "the dense cache"
            )
        inside = seen.prefix[:1] < self.start
        none = jnp.zeros_like(seen.ancestors)
        level = Level(
            self.prefix.k,
            self.prefix.v,
            jnp.minimum(seen.prefix[:1], self.start),
            jnp.where(inside, seen.ancestors, none),
        )
        return shared_prefix_attention(
            q,
            [level],
            self.rest.k,
            self.rest.v,
            jnp.maximum(seen.prefix - self.start, 0),
            jnp.where(inside, none, seen.ancestors),
            **settings,
        )

    def move(self, source: Array, target: Array) -> "SharedLayer":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped.

        What moves lies behind the prefix: prompts are chains.
        """
        start = self.start
        return replace(self, rest=self.rest.move(source - start, target - start))

    def settle(self, before: Array, length: Array) -> "SharedLayer":
        return self

    def gather(self, rows: Array) -> "SharedLayer":
        return replace(self, rest=self.rest.gather(rows))

    def axes(self) -> Any:
        names: Any = "- kv_heads sequence -"
        prefix = kv_cache.DenseLayer(names, names)
        return replace(self, prefix=prefix, rest=self.rest.axes())


def shared(dense: kv_cache.KVCache, prefix: int) -> kv_cache.KVCache:
    """An empty cache of the shapes of `dense` whose rows share `prefix` slots."""

    def layer(like: kv_cache.DenseLayer) -> SharedLayer:
        def part(x: Array, batch: int, size: int) -> Array:
            return jnp.zeros((batch, x.shape[1], size, x.shape[3]), x.dtype)

        batch, size = like.k.shape[0], like.k.shape[2]
        one = [part(x, 1, prefix) for x in (like.k, like.v)]
        own = [part(x, batch, size - prefix) for x in (like.k, like.v)]
        return SharedLayer(kv_cache.DenseLayer(*one), kv_cache.DenseLayer(*own))

    return kv_cache.KVCache(
        tuple(map(layer, dense.layers)),
        jnp.full(dense.pos.shape, -1, jnp.int32),
        jnp.zeros(dense.length.shape, jnp.int32),
    )


def must_be_dense(config: Any) -> bool:
    """Whether a transformer's layers read their cache in ways this layout has not."""
    return config.position == "alibi" or any(config.windows)
