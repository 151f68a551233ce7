"""The quantised cache layouts: codes of old tokens, recent ones in full precision.

`transformer(config, cache=quantized.int8())`, or `quantized.int4(...)`. Memory per
token and KV head: d bytes for keys and values of 4 bits, 2 d of 8, and 8 bytes of
scales, against 4 d in bfloat16; the recent window has a fixed size.

Under a policy that evicts (`kept`), slots count from the row's first kept one. A slot
that was exact and stays in the recent window is exact; one that was not, and comes to
lie in it, has the values of its codes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from kernels import int4_packing, quantized_kv
from models import base
from models.cache_layouts.kv_cache import KVCache
from models.distributed import sharding
from models.errors import ConfigError

GROUP = quantized_kv.GROUP


@struct.dataclass
class QuantizedLayer:
    """One layer: codes of complete groups, and the recent arrays.

    Slot `s` of row `b` is in row `s - base[b]` of the recent arrays. Its codes exist
    once its group of tokens is complete and committed.
    """

    old: quantized_kv.Old
    recent: quantized_kv.Recent
    size: int = struct.field(pytree_node=False)
    window: int = struct.field(pytree_node=False)

    streamed = True  # a slot's precision for a node depends on the node's position
    shares = False
    group = GROUP  # tokens that are quantised together

    @property
    def span(self) -> int:
        return self.window  # a block has at most so many nodes

    @property
    def slots(self) -> int:
        return self.size

    def append(self, slots: Array, k: Array, v: Array) -> "QuantizedLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped."""
        recent = self.recent
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        at = self._at(recent.k, self._row(slots))
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        recent = recent._replace(
            k=recent.k.at[at].set(k.astype(recent.k.dtype), **put),
            v=recent.v.at[at].set(v.astype(recent.v.dtype), **put),
        )
        return replace(self, recent=recent)

    def read(self) -> tuple[Array, Array]:
        """Return keys and values float32[B, G, S, d], exact from the boundary on."""
        old, recent = self.old, self.recent
        k = quantized_kv.widen(old.k, old.k_scale) * old.channel[:, :, None]
        v = quantized_kv.widen(old.v, old.v_scale)
        rows = recent.base[:, None] + jnp.arange(recent.k.shape[2])
        at = self._at(k, rows)
        return (
            k.at[at].set(recent.k.astype(k.dtype), mode="drop"),
            v.at[at].set(recent.v.astype(v.dtype), mode="drop"),
        )

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; see `kv_cache.DenseLayer.attend`."""
        nodes = 32 * seen.ancestors.shape[2]
        if nodes > self.window:
            raise ConfigError(
                f"a tree or a chunk has more than {nodes - 32} nodes, and the cache's "
                f"window is {self.window}: use a window of {nodes} at least"
            )
        return quantized_kv.attention(
            q,
            self.old,
            self.recent,
            seen.prefix,
            seen.ancestors,
            positions,
            key_positions,
            keep=self.window,
            **settings,
        )

    def move(self, source: Array, target: Array) -> "QuantizedLayer":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        recent = self.recent
        at = self._at(recent.k, self._row(source))
        k, v = (x.at[at].get(mode="clip") for x in (recent.k, recent.v))
        return self.append(target, k.swapaxes(1, 2), v.swapaxes(1, 2))

    def settle(self, before: Array, length: Array) -> "QuantizedLayer":
        """Quantise the groups that `length` completes; evict their exact copies.

        Exact keys stay while a node of the next round may read them. Rows without a
        commit stay as they are.
        """
        axes = (self.axes(), "batch", "batch")
        return sharding.by_shard(type(self)._settled, (self, before, length), axes)

    def _settled(self, before: Array, length: Array) -> "QuantizedLayer":
        """Settle a shard of the layer."""
        layer = self._completed(before, length)
        base = quantized_kv.boundary(length, self.window, self.group)
        step = base - self.recent.base

        def shift(recent: quantized_kv.Recent) -> quantized_kv.Recent:
            rows = step[:, None] + jnp.arange(recent.k.shape[2])
            at = self._at(recent.k, rows)
            k, v = (x.at[at].get(mode="clip") for x in (recent.k, recent.v))
            return quantized_kv.Recent(k, v, base)

        recent = lax.cond((step > 0).any(), shift, lambda x: x, layer.recent)
        return replace(layer, recent=recent)

    def take(self, index: Array, before: Array, after: Array) -> "QuantizedLayer":
        """Let slot j of head g be what slot `index[b, g, j]` was.

        Args:
            index: int32[B, G, S], in rising order where it is in use.
            before: int32[B], slots in use, all of them settled.
            after: int32[B], those in use of the result.
        """
        old: Any = self.old
        recent = self.recent
        base = quantized_kv.boundary(after, self.window)
        row = jnp.arange(recent.k.shape[2], dtype=jnp.int32)
        # Slots behind the last complete group have exact values and no codes yet.
        exact = recent.base[:, None] + row
        has_codes = exact < (before // GROUP * GROUP)[:, None]
        fresh = jnp.where(has_codes, self.size + row, exact)
        near = jnp.minimum(base[:, None] + row, self.size - 1)
        source = jnp.take_along_axis(index, near[:, None], 2)
        from_row = source - recent.base[:, None, None]
        lead = self._at(old.k, row[None])[:2]

        def taken(codes: Array, scale: Array, values: Array, factor: Array) -> tuple:
            numbers = quantized_kv.whole(codes)
            new, new_scale = quantized_kv.numbers(
                values.astype(jnp.float32) / factor[:, :, None], codes.dtype
            )
            put = self._at(numbers, fresh)
            numbers = numbers.at[put].set(new, mode="drop", unique_indices=True)
            scale = scale.at[put].set(new_scale, mode="drop", unique_indices=True)
            pick = lambda x, at: x.at[(*lead, at)].get(mode="clip")
            widened = pick(numbers, source) * pick(scale, source)[..., None]
            recents = jnp.where(
                (from_row >= 0)[..., None],
                pick(values, from_row),
                (widened * factor[:, :, None]).astype(values.dtype),
            )
            packed = quantized_kv.stored(pick(numbers, index), codes.dtype)
            return packed, pick(scale, index), recents

        ones = jnp.ones_like(old.channel)
        k, k_scale, near_k = taken(old.k, old.k_scale, recent.k, old.channel)
        v, v_scale, near_v = taken(old.v, old.v_scale, recent.v, ones)
        return replace(
            self,
            old=quantized_kv.Old(k, v, k_scale, v_scale, old.channel),
            recent=quantized_kv.Recent(near_k, near_v, base),
        )

    def sized(self, slots: int) -> "QuantizedLayer":
        """Return the layer with `slots` slots, rounded up to whole groups."""
        size = -(-slots // GROUP) * GROUP
        more = max(size - self.size, 0)

        def resize(x: Array) -> Array:
            per = self.size // x.shape[2]
            pad = ((0, 0), (0, 0), (0, more // per)) + ((0, 0),) * (x.ndim - 3)
            return jnp.pad(x, pad)[:, :, : size // per]

        old: Any = self.old
        codes = jax.tree.map(resize, old._replace(channel=None))
        old = codes._replace(channel=old.channel)
        return replace(self, old=old, size=size)

    def gather(self, rows: Array) -> "QuantizedLayer":
        pick = lambda part: jax.tree.map(lambda x: x[rows], part)
        return replace(self, old=pick(self.old), recent=pick(self.recent))

    def axes(self) -> Any:
        heads: Any = "batch kv_heads"
        rows: Any = "batch"
        old = quantized_kv.Old(heads, heads, heads, heads, heads)
        return replace(self, old=old, recent=quantized_kv.Recent(heads, heads, rows))

    def _completed(self, before: Array, length: Array) -> "QuantizedLayer":
        """Quantise the groups that are complete at `length` and were not `before`."""
        layer = self
        for i in range(-(-self.window // self.group)):
            group = before // self.group + i
            layer = layer._quantise(group, group < length // self.group)
        return layer

    def _quantise(self, group: Array, complete: Array) -> "QuantizedLayer":
        """Write the codes of group `group[b]` in the rows where it is `complete`."""
        old: Any = self.old
        recent = self.recent
        index = jnp.arange(GROUP, dtype=jnp.int32)
        slots = group[:, None] * GROUP + index
        at = self._at(recent.k, slots - recent.base[:, None])
        k, v = (x.at[at].get(mode="clip") for x in (recent.k, recent.v))
        first = (complete & (group == 0))[:, None, None]
        channel = jnp.where(first, quantized_kv.channels(k), old.channel)
        k_codes, k_scale = quantized_kv.keys(k, channel, old.k.dtype)
        v_codes, v_scale = quantized_kv.values(v, old.v.dtype)
        slots = jnp.where(complete[:, None], slots, self.size + index)
        per = int4_packing.slots(old.k.dtype)
        rows = group[:, None] * (GROUP // per) + index[: GROUP // per]
        rows = jnp.where(complete[:, None], rows, self.size + index[: GROUP // per])
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        to, scale_at = self._at(old.k, rows), self._at(old.k_scale, slots)
        old = quantized_kv.Old(
            old.k.at[to].set(k_codes, **put),
            old.v.at[to].set(v_codes, **put),
            old.k_scale.at[scale_at].set(k_scale, **put),
            old.v_scale.at[scale_at].set(v_scale, **put),
            channel,
        )
        return replace(self, old=old)

    def _row(self, slots: Array) -> Array:
        """Return the rows of slots in the recent arrays; past their end for >= S."""
        far = self.recent.k.shape[2] + slots - self.size
        return jnp.where(slots < self.size, slots - self.recent.base[:, None], far)

    @staticmethod
    def _at(x: Array, slots: Array) -> tuple:
        rows, groups = jnp.arange(x.shape[0]), jnp.arange(x.shape[1])
        return rows[:, None, None], groups[None, :, None], slots[:, None, :]


def int8(window: int = 128) -> Callable[..., KVCache]:
    """Return a maker of caches of 8-bit codes; see `int4`."""
    return _maker(jnp.dtype(jnp.int8), window)


def int4(window: int = 128) -> Callable[..., KVCache]:
    """Return a maker of caches of 4-bit codes.

    At least `window` tokens keep full precision (KIVI's residual length: 128). A
    block's tree, or chunk of the prompt, has at most `window` nodes.
    """
    return _maker(jnp.dtype(int4_packing.DTYPE), window)


def _maker(codes: Any, window: int) -> Callable[..., KVCache]:
    if window < 32 or window % 32:
        raise ConfigError(f"window={window}: use a multiple of 32, 128 for `generate`")

    def make(
        n_layers: int, batch: int, size: int, groups: int, head_dim: int, dtype: Any
    ) -> KVCache:
        """Make an empty cache; `size` is rounded up to whole groups."""
        size = -(-size // GROUP) * GROUP
        rows = 2 * window + GROUP

        def layer() -> QuantizedLayer:
            shape = (batch, groups, size // int4_packing.slots(codes), head_dim)
            new = jnp.zeros
            return QuantizedLayer(
                quantized_kv.Old(
                    new(shape, codes),
                    new(shape, codes),
                    new((batch, groups, size), jnp.float32),
                    new((batch, groups, size), jnp.float32),
                    jnp.ones((batch, groups, head_dim), jnp.float32),
                ),
                quantized_kv.Recent(
                    new((batch, groups, rows, head_dim), dtype),
                    new((batch, groups, rows, head_dim), dtype),
                    new((batch,), jnp.int32),
                ),
                size,
                window,
            )

        return KVCache(
            tuple(layer() for _ in range(n_layers)),
            jnp.full((batch, size), -1, jnp.int32),
            jnp.zeros((batch,), jnp.int32),
        )

    return make
