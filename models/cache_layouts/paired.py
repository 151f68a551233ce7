"""Pairs of adjacent layers that share the directions of their keys and values.

Each layer of a pair keeps some tokens of its own, as a `KeptLayer`: those that a policy
retains and the newest. Of the others, which are committed and seen by every node, the
lower layer holds directions for both, and each layer the lengths of its own keys and
values. The upper layer borrows the directions within a call (`lent`): they change
between calls only, so that layers may be skipped, put and gathered as any others.

A length multiplies a slot's score and its weight. The kernels' `k_scale` and `v_scale`
are such factors, so long caches are read without making the keys.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels import merge_softmax
from kernels.tree_attention import tree_attention
from models import base
from models.cache_layouts.kept import KeptLayer
from models.cache_layouts.kv_cache import DenseLayer, KVCache


@struct.dataclass
class PairedLayer(KeptLayer):
    """One layer of a pair. The `shift` tokens without a slot of its own are merged."""

    lengths: Array | None = (
        None  # float32[B, M, 2]: of keys, values; None: in the prompt
    )
    ways: DenseLayer | None = None  # M directions; None in the upper layer
    is_lower: bool = struct.field(pytree_node=False, default=True)
    merged: int = struct.field(
        pytree_node=False, default=0
    )  # M, once the prompt is read

    def read(self) -> tuple[Array, Array]:
        """Return keys and values [B, G, M + C, d]: merged slots, then its own."""
        own = self.store.read()
        if self.ways is None:
            return own
        scales = self._scales()
        parts = zip(self.ways.read(), scales, own)
        joined = [
            jnp.concatenate([(way * scale[..., None]).astype(x.dtype), x], 2)
            for way, scale, x in parts
        ]
        return joined[0], joined[1]

    def view(self, mask: Array) -> Array:
        """Return bool[B, N, M + C] of a logical mask [B, N, S]."""
        own = super().view(mask)
        if self.ways is None:
            return own
        there = jnp.arange(self.merged, dtype=jnp.int32) < self.shift[:, None, None]
        there = jnp.broadcast_to(there, (*own.shape[:2], self.merged))
        return jnp.concatenate([there, own], 2)

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend as `HeldLayer.attend`, to the merged slots too."""
        own = super().attend(q, seen, positions, key_positions, **settings)
        if self.ways is None:
            return own
        k_scale, v_scale = self._scales()
        none = jnp.zeros_like(seen.ancestors)
        old = tree_attention(
            q,
            *self.ways.read(),
            self.shift,
            none,
            k_scale=k_scale,
            v_scale=v_scale,
            **settings,
        )
        return merge_softmax.merge([old, own])

    def axes(self) -> Any:
        rows: Any = "batch"
        names: dict[str, Any] = {}
        if self.lengths is not None:
            names["lengths"] = rows
        if self.ways is not None:
            names["ways"] = self.ways.axes()
        return replace(super().axes(), **names)

    def _scales(self) -> tuple[Array, Array]:
        """Return the factors float32[B, G, M] of merged keys and values."""
        assert self.lengths is not None
        shape = (*self.pos.shape[:2], self.merged)
        k, v = self.lengths[:, None, :, 0], self.lengths[:, None, :, 1]
        return jnp.broadcast_to(k, shape), jnp.broadcast_to(v, shape)


def pair(lower: KeptLayer, upper: KeptLayer, merged: int) -> tuple[Any, Any]:
    """Make a pair of two empty kept layers, for `merged` slots after the prompt."""

    def one(layer: KeptLayer, is_lower: bool) -> PairedLayer:
        fields = {name: getattr(layer, name) for name in layer.__dataclass_fields__}
        return PairedLayer(**fields, is_lower=is_lower, merged=merged)

    return one(lower, True), one(upper, False)


def opened(layer: PairedLayer) -> PairedLayer:
    """Return the layer with empty places for its merged slots."""
    batch, groups = layer.pos.shape[:2]
    ways = None
    if layer.is_lower:
        shape = (batch, groups, layer.merged, layer.store.k.shape[3])
        new = lambda x: jnp.zeros(shape, x.dtype)
        ways = DenseLayer(new(layer.store.k), new(layer.store.v))
    return replace(layer, lengths=jnp.zeros((batch, layer.merged, 2)), ways=ways)


def lent(cache: KVCache, i: int, store: Any) -> Any:
    """Return layer i of a cache with the directions of its pair, if it needs them."""
    if not isinstance(store, PairedLayer) or store.is_lower:
        return store
    return replace(store, ways=cache.layers[i - 1].ways)
