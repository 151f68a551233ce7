"""Key-value caches: the dense layout, and the operations that every layout offers.

Layout (how a layer's keys are stored) is independent of policy (which slots live and
how they are read). A layout is a pytree with `append`, `read`, `attend`, `move`,
`settle`, `gather` and `axes`; the cache adds one position per slot and the number of
committed slots per row. `models/cache_layouts` has the other layouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels.tree_attention import tree_attention
from models import base


@struct.dataclass
class DenseLayer:
    """One layer's keys and values, `[B, G, S, d]`.

    Slots are the second-last axis because attention then is a batched product over
    `(B, G)` with no copy of the cache; with `[B, S, G, d]` XLA's CPU back end
    transposes the whole layer at every call.
    """

    k: Array  # [B, G, S, d]
    v: Array  # [B, G, S, d]

    streamed = False  # True: a model call must use `attend`, not `read` and a mask
    shares = True  # whether `models.cache_layouts.shared_prefix` may replace it
    span = 0  # slots that chunks of the prompt must divide; 0: any

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    def append(self, slots: Array, k: Array, v: Array) -> "DenseLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped."""
        rows, groups = jnp.arange(self.k.shape[0]), jnp.arange(self.k.shape[1])
        at = (rows[:, None, None], groups[None, :, None], slots[:, None, :])
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        return replace(
            self,
            k=self.k.at[at].set(k.swapaxes(1, 2).astype(self.k.dtype), **put),
            v=self.v.at[at].set(v.swapaxes(1, 2).astype(self.v.dtype), **put),
        )

    def read(self) -> tuple[Array, Array]:
        """Return keys and values `[B, G, S, d]` in the dtype of the products."""
        return self.k, self.v

    def move(self, source: Array, target: Array) -> "DenseLayer":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        # Indexed as in `append`: for `take_along_axis` the TPU compiler copies the
        # whole layer into another memory layout and back.
        rows, groups = jnp.arange(self.k.shape[0]), jnp.arange(self.k.shape[1])
        at = (rows[:, None, None], groups[None, :, None], source[:, None, :])
        k, v = self.k.at[at].get(mode="clip"), self.v.at[at].get(mode="clip")
        return self.append(target, k.swapaxes(1, 2), v.swapaxes(1, 2))

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; return `(out, lse)` as `tree_attention` does.

        Args:
            q: queries of a block of N nodes.
            seen: the nodes' visibility.
            positions: int32[B, N], of the nodes.
            key_positions: int32[B, S], of the slots.
            settings: further arguments of `tree_attention`.
        """
        return tree_attention(
            q,
            self.k,
            self.v,
            seen.prefix,
            seen.ancestors,
            positions=positions,
            key_positions=key_positions,
            **settings,
        )

    def settle(self, before: Array, length: Array) -> "DenseLayer":
        """Update the layer after a commit of slots `before` to `length`, int32[B]."""
        return self

    def grown(self, more: int) -> "DenseLayer":
        """Add `more` empty slots."""
        pad = ((0, 0), (0, 0), (0, more), (0, 0))
        return replace(self, k=jnp.pad(self.k, pad), v=jnp.pad(self.v, pad))

    def sized(self, slots: int) -> "DenseLayer":
        """Return the layer with `slots` slots, the first ones as they are."""
        pad = ((0, 0), (0, 0), (0, max(slots - self.slots, 0)), (0, 0))
        resize = lambda x: jnp.pad(x, pad)[:, :, :slots]
        return replace(self, k=resize(self.k), v=resize(self.v))

    def take(
        self, index: Array, before: Array | None = None, after: Array | None = None
    ) -> "DenseLayer":
        """Let slot j of row b be what slot `index[b, j]` was; int32[B, M].

        An index [B, G, M] gives each KV head its own. `before` and `after` int32[B],
        the slots in use, are for layouts to which they matter.
        """
        # Indexed as in `append`, so that the result keeps the layer's memory layout.
        rows, groups = jnp.arange(self.k.shape[0]), jnp.arange(self.k.shape[1])
        index = index if index.ndim == 3 else index[:, None, :]
        at = (rows[:, None, None], groups[None, :, None], index)
        k, v = self.k.at[at].get(mode="clip"), self.v.at[at].get(mode="clip")
        return replace(self, k=k, v=v)

    def gather(self, rows: Array) -> "DenseLayer":
        return replace(self, k=self.k[rows], v=self.v[rows])

    def axes(self) -> Any:
        names: Any = "batch kv_heads - -"
        return replace(self, k=names, v=names)


@struct.dataclass
class KVCache:
    """A cache of any layout. Slots past `length` are scratch, of undefined content.

    `length` counts tokens seen. It never shrinks, even where a policy evicts: prefill's
    progress, positions and the loop's conditions use it. Slots are logical: a layer
    that holds fewer than it has seen translates them itself. In the dense, paged and
    quantised layouts slot and token number are the same.
    """

    layers: tuple[Any, ...]
    pos: Array  # int32[B, S]: position of the token in a slot, -1 when empty
    length: Array  # int32[B]: tokens seen and committed

    @property
    def size(self) -> int:
        return self.pos.shape[1]

    @property
    def shares(self) -> bool:
        return bool(self.layers) and self.layers[0].shares

    @property
    def overrun(self) -> Any:
        """Return bool[]: whether space ran out for a token, so that texts are wrong."""
        return False

    def open(self, block: base.Block) -> Self:
        """Record the positions of the block's nodes; the layers append the keys."""
        rows = jnp.arange(self.pos.shape[0])[:, None]
        pos = self.pos.at[rows, block.slots].set(
            block.positions, mode="drop", unique_indices=True
        )
        return replace(self, pos=pos)

    def put(self, lo: int, stores: tuple[Any, ...]) -> Self:
        """Replace the layers from `lo` on by `stores`.

        A `lax.cond` that takes only the layers it writes, instead of the cache, copies
        none of the others.
        """
        rest = self.layers[lo + len(stores) :]
        return replace(self, layers=(*self.layers[:lo], *stores, *rest))

    def commit(self, path: Array, count: Array, linear: bool = False) -> "KVCache":
        """Commit the root and the accepted `path`; copy at most `M` slots a row.

        Args:
            path: int32[B, M], tree-node indices; node `i` was written at slot
                `length + i`.
            count: int32[B], how many of them were accepted; -1 commits nothing.
            linear: whether node `i` is always `i`th on the path, so that nothing moves.
        """
        cache = self
        if not linear and path.shape[1]:
            order = jnp.arange(path.shape[1], dtype=jnp.int32)
            source = self.length[:, None] + path
            target = self.length[:, None] + 1 + order
            keep = (order < count[:, None]) & (source != target)
            cache = self._moved(source, jnp.where(keep, target, self.size + order))
        return cache._committed(self.length + count + 1)

    def _moved(self, source: Array, target: Array) -> Self:
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        rows = jnp.arange(self.pos.shape[0])[:, None]
        pos = jnp.take_along_axis(self.pos, source, axis=1, mode="clip")
        return replace(
            self,
            layers=tuple(layer.move(source, target) for layer in self.layers),
            pos=self.pos.at[rows, target].set(pos, mode="drop", unique_indices=True),
        )

    def _committed(self, length: Array) -> Self:
        """Return the cache with `length` committed slots, int32[B]."""
        layers = tuple(layer.settle(self.length, length) for layer in self.layers)
        return replace(self, layers=layers, length=length)

    def close_up(self, order: Array, kept: Array, settled: Array) -> Self:
        """Give the scratch slots a new order, and commit the first of them.

        Args:
            order: int32[B, M]; the slot `length + order[b, i]` becomes `length + i`.
            kept: int32[B], how many of them hold something.
            settled: int32[B], how many of these are committed.
        """
        index = jnp.arange(order.shape[1], dtype=jnp.int32)
        source = self.length[:, None] + order
        moves = (index < kept[:, None]) & (order != index)
        target = jnp.where(moves, self.length[:, None] + index, self.size + index)
        return self._moved(source, target)._committed(self.length + settled)

    def grown(self, more: int) -> Self:
        """Add `more` empty slots; only where `grows`."""
        layers = tuple(layer.grown(more) for layer in self.layers)
        pos = jnp.pad(self.pos, ((0, 0), (0, more)), constant_values=-1)
        return replace(self, layers=layers, pos=pos)

    @property
    def grows(self) -> bool:
        """Whether slots can be added."""
        return all(hasattr(layer, "grown") for layer in self.layers)

    def admit(self, row: Array, other: Self, source: Array) -> Self:
        """Replace row `row` by row `source` of `other`, a cache of the same sizes."""
        take = lambda old, new: old.at[row].set(new[source])
        return jax.tree.map(take, self, other)

    def gather(self, rows: Array) -> "KVCache":
        """Reorder rows: row `i` of the result is row `rows[i]` (beam search)."""
        return KVCache(
            tuple(layer.gather(rows) for layer in self.layers),
            self.pos[rows],
            self.length[rows],
        )

    def axes(self) -> Any:
        """Return the same tree with the axes of every array in place of the array.

        See `models.distributed.sharding`.
        """
        layers = tuple(layer.axes() for layer in self.layers)
        names: dict[str, Any] = {"pos": "batch -", "length": "batch"}
        return replace(self, layers=layers, **names)


def dense(
    n_layers: int, batch: int, size: int, groups: int, head_dim: int, dtype: Any
) -> KVCache:
    """Make an empty dense cache of `size` slots and `groups` KV heads."""
    shape = (batch, groups, size, head_dim)
    return KVCache(
        tuple(
            DenseLayer(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
            for _ in range(n_layers)
        ),
        jnp.full((batch, size), -1, jnp.int32),
        jnp.zeros((batch,), jnp.int32),
    )


def of_sizes(
    make: Callable[..., KVCache],
    sizes: Sequence[tuple[int, int]],
    batch: int,
    size: int,
    dtype: Any,
) -> KVCache:
    """Make a cache of a layout whose layer i has `sizes[i]`, KV heads and their width.

    Layers share the positions and pages of one cache.
    """
    kinds = list(dict.fromkeys(sizes))
    made = [make(sizes.count(kind), batch, size, *kind, dtype) for kind in kinds]
    if len(made) == 1:
        return made[0]
    rest = [iter(cache.layers) for cache in made]
    layers = tuple(next(rest[kinds.index(kind)]) for kind in sizes)
    return replace(made[0], layers=layers)


def by_rows(cached: Callable, array: Callable, tree: Any, *more: Any) -> Any:
    """Map trees whose first axis is the batch: caches by `cached`, leaves by `array`.

    A cache has a function of its own because some of its arrays may have no rows.
    """

    def whole(x: Any) -> bool:
        return isinstance(x, KVCache)

    def one(x: Any, *rest: Any) -> Any:
        return (cached if whole(x) else array)(x, *rest)

    return jax.tree.map(one, tree, *more, is_leaf=whole)
