"""The shared-prefix layout: one copy of the common prefix, separate rests of the rows.

The first slots of a cache, a whole number of the prompt's chunks, hold the same tokens
in every row. They are one array, which attention reads once for the batch (Hydragen,
`kernels/shared_prefix_attention`). A block lies wholly in the prefix, where rows are
prefilled together, or wholly behind it.
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
        """The number of slots P in the prefix."""
        return self.prefix.k.shape[2]

    @property
    def span(self) -> int:
        return self.start

    def append(self, slots: Array, k: Array, v: Array) -> "SharedLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped.

        In the prefix all rows are equal, and the first one is written.
        """
        size = self.rest.k.shape[2]
        past = size + jnp.arange(slots.shape[1])
        behind = jnp.where(slots >= self.start, slots - self.start, past)
        first = jnp.where(slots[:1] < self.start, slots[:1], self.start + past)
        return SharedLayer(
            self.prefix.append(first, k[:1], v[:1]), self.rest.append(behind, k, v)
        )

    def read(self) -> tuple[Array, Array]:
        """Copy keys and values into dense arrays `[B, G, S, d]`."""
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
        """Attend with q `[B, N, H, d]`; see `kv_cache.DenseLayer.attend`."""
        if window:
            raise ConfigError(
                f"a layer has a window of {window} tokens, which a shared prefix does "
                "not support: use the dense cache"
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

        All slots that move lie behind the prefix: prompts are chains.
        """
        start = self.start
        return replace(self, rest=self.rest.move(source - start, target - start))

    def settle(self, before: Array, length: Array) -> "SharedLayer":
        return self

    def gather(self, rows: Array) -> "SharedLayer":
        return replace(self, rest=self.rest.gather(rows))

    def axes(self) -> Any:
        names: Any = "- kv_heads - -"
        prefix = kv_cache.DenseLayer(names, names)
        return replace(self, prefix=prefix, rest=self.rest.axes())


def shared(dense: kv_cache.KVCache, prefix: int) -> kv_cache.KVCache:
    """Make an empty cache of the shapes of `dense` whose rows share `prefix` slots."""

    def layer(like: kv_cache.DenseLayer) -> SharedLayer:
        def part(x: Array, batch: int, size: int) -> Array:
            return jnp.zeros((batch, x.shape[1], size, x.shape[3]), x.dtype)

        batch, size = like.k.shape[0], like.k.shape[2]
        common = [part(x, 1, prefix) for x in (like.k, like.v)]
        rest = [part(x, batch, size - prefix) for x in (like.k, like.v)]
        return SharedLayer(kv_cache.DenseLayer(*common), kv_cache.DenseLayer(*rest))

    return kv_cache.KVCache(
        tuple(map(layer, dense.layers)),
        jnp.full(dense.pos.shape, -1, jnp.int32),
        jnp.zeros(dense.length.shape, jnp.int32),
    )


def must_be_dense(config: Any) -> bool:
    """Return whether a transformer's layers need ALiBi or windows, so a dense cache."""
    return config.position == "alibi" or bool(config.every_window)
