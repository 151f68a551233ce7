"""Keys that hold their values: what latent attention caches, once.

The value of a slot is the last `value` numbers of its key
(`models.transformer.latent_attention`). Layouts of two arrays hold the key twice.
"""

from dataclasses import replace
from typing import Any

from flax import struct
from jax import Array

from kernels import tree_attention as trees
from models import base
from models.cache_layouts.kv_cache import DenseLayer, KVCache


@struct.dataclass
class JointLayer(DenseLayer):
    """A dense layer of keys `[B, G, S, d]`; `v` has no columns."""

    value: int = struct.field(pytree_node=False, default=0)  # numbers of a value

    shares = False

    def append(self, slots: Array, k: Array, v: Array) -> Any:
        return super().append(slots, k, v[..., :0])

    def read(self) -> tuple[Array, Array]:
        return self.k, self.k[..., -self.value :]

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend as `DenseLayer`; kernels, which need one width, return a key's."""
        whole = trees.runs_kernel(settings["kernel"])
        both = replace(self, v=self.k if whole else self.read()[1])
        return super(JointLayer, both).attend(
            q, seen, positions, key_positions, **settings
        )


def joint(cache: KVCache, value: int) -> KVCache:
    """Return an empty cache whose dense layers hold keys alone."""

    def one(layer: Any) -> Any:
        if type(layer) is not DenseLayer:
            return layer
        return JointLayer(layer.k, layer.v[..., :0], value)

    return replace(cache, layers=tuple(map(one, cache.layers)))
