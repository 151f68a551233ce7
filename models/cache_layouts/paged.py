"""The paged cache layout: rows own pages of a pool, and share those of a prefix.

`transformer(config, cache=paged.pages())`. Kwon et al., *Efficient Memory Management
for Large Language Model Serving with PagedAttention*, 2023, arXiv 2309.06180, sections
4.1 to 4.4. A page is allocated when a block first writes to it and freed by `free`;
pages of rejected drafts serve the row's next tokens. Shared pages are full and never
written: a forked row copies its one partial page (the copy on write of section 4.4, at
the only time it can be needed).

On a mesh that cuts the batch, each of its D parts has a pool of its own, for its own
rows: a device holds one pool, and attention reads no other. Without a mesh D is 1. Row
`b` of B owns pages of pool `b // (B / D)`, and page numbers count within a pool.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels.paged_tree_attention import paged_tree_attention
from kernels.paged_tree_attention.reference import written_out
from models import base
from models.cache_layouts import kv_cache
from models.distributed import sharding
from models.errors import ConfigError

PAGE = 128


@struct.dataclass
class PagedLayer:
    """One layer's D pools of P pages; all layers have the same table."""

    k: Array  # [D, P, G, page, d]
    v: Array  # [D, P, G, page, d]
    table: Array  # int32[B, S / page]: of the row's pool; P where there is no page

    streamed = True  # no layer is one array
    shares = False
    span = 0

    def append(self, slots: Array, k: Array, v: Array) -> "PagedLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped."""
        new: Any = "batch - kv_heads -"
        axes = (self.axes(), "batch", new, new)
        return sharding.by_shard(PagedLayer._append, (self, slots, k, v), axes)

    def read(self) -> tuple[Array, Array]:
        """Copy keys and values into dense arrays `[B, G, S, d]`."""
        k, v, table = self._one_pool()
        return written_out(k, table), written_out(v, table)

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; see `kv_cache.DenseLayer.attend`."""
        return paged_tree_attention(
            q,
            *self._one_pool(),
            seen.prefix,
            seen.ancestors,
            positions=positions,
            key_positions=key_positions,
            **settings,
        )

    def move(self, source: Array, target: Array) -> "PagedLayer":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        axes = (self.axes(), "batch", "batch")
        return sharding.by_shard(PagedLayer._move, (self, source, target), axes)

    def settle(self, before: Array, length: Array) -> "PagedLayer":
        return self

    def axes(self) -> Any:
        """Return the axes of the arrays; pools lie where their rows are."""
        names: Any = "batch - kv_heads - -"
        table: Any = "batch -"
        return PagedLayer(names, names, table)

    def copy_pages(
        self,
        of: "PagedLayer",
        source: tuple[Array, Array],
        target: tuple[Array, Array],
    ) -> "PagedLayer":
        """Copy pages of another layer's pools; pages >= P of the target are dropped.

        Args:
            of: the layer that is read, which may have another number of pools.
            source: (pools, pages), int32 arrays that broadcast to `[M]`.
            target: as `source`, of this layer.
        """
        k, v = of.k.at[source].get(mode="clip"), of.v.at[source].get(mode="clip")
        return replace(
            self,
            k=self.k.at[target].set(k, mode="drop"),
            v=self.v.at[target].set(v, mode="drop"),
        )

    def _append(self, slots: Array, k: Array, v: Array) -> "PagedLayer":
        at = self._at(slots)
        put: dict[str, Any] = {"mode": "drop"}  # dropped slots share page P
        return replace(
            self,
            k=self.k.at[at].set(k.swapaxes(1, 2).astype(self.k.dtype), **put),
            v=self.v.at[at].set(v.swapaxes(1, 2).astype(self.v.dtype), **put),
        )

    def _move(self, source: Array, target: Array) -> "PagedLayer":
        at = self._at(source)
        k, v = self.k.at[at].get(mode="clip"), self.v.at[at].get(mode="clip")
        return self._append(target, k.swapaxes(1, 2), v.swapaxes(1, 2))

    def _one_pool(self) -> tuple[Array, Array, Array]:
        """Return k, v `[D P, G, page, d]` and the table of their pages.

        Kernels take one pool. A device has one, so that nothing is copied.
        """
        pools, pages = self.k.shape[:2]
        k, v = (x.reshape(-1, *x.shape[2:]) for x in (self.k, self.v))
        if pools == 1:
            return k, v, self.table
        pool = pools_of(self.table.shape[0], pools)
        table = jnp.where(self.table < pages, self.table + pool * pages, pools * pages)
        return k, v, table

    def _at(self, slots: Array) -> tuple:
        pools, pages, groups, page, _ = self.k.shape
        rows = jnp.arange(slots.shape[0])[:, None]
        page_ids = self.table.at[rows, slots // page].get(mode="fill", fill_value=pages)
        pool = pools_of(slots.shape[0], pools)[:, None]
        at = jnp.arange(groups)[None, :, None]
        return pool, page_ids[:, None], at, (slots % page)[:, None]


def pools_of(rows: int, pools: int) -> Array:
    """Return the pool of each row, int32[rows, 1]."""
    return jnp.arange(rows, dtype=jnp.int32)[:, None] // (rows // pools)


@struct.dataclass
class PagedCache(kv_cache.KVCache):
    """A `KVCache` with the use counts of its D pools of P pages."""

    users: Array  # int32[D, P]: number of rows whose table has the page
    exhausted: Array  # bool[D]: an allocation found no free page, so texts are wrong

    @property
    def table(self) -> Array:
        """int32[B, S / page]"""
        return self.layers[0].table

    @property
    def page(self) -> int:
        return self.layers[0].k.shape[3]

    @property
    def absent(self) -> int:
        """The table's entry where there is no page: P."""
        return self.users.shape[1]

    @property
    def pool(self) -> Array:
        """int32[B, 1]: the pool of each row."""
        return pools_of(self.table.shape[0], self.users.shape[0])

    @property
    def overrun(self) -> Array:
        return self.exhausted.any()

    def open(self, block: base.Block) -> "PagedCache":
        """Record the block's positions, and allocate the pages it is first to write."""
        last = jnp.where(block.slots < self.size, block.slots, -1).max(1)
        nodes = block.slots.shape[1]
        # A level of a tree is written behind levels whose pages are allocated.
        count = min(self.table.shape[1], -(-nodes // self.page) + 1)
        first = jnp.where(block.slots < self.size, block.slots, self.size).min(1)
        column = first[:, None] // self.page + jnp.arange(count, dtype=jnp.int32)
        cache = super().open(block)
        return cache._take(column, column * self.page <= last[:, None])

    def free(self, rows: Array) -> "PagedCache":
        """Free the pages of the rows where `rows` bool[B] holds; they become empty."""
        pages = jnp.where(rows[:, None], self.table, self.absent)
        users = self.users.at[self.pool, pages].add(-1, mode="drop")
        none = jnp.where(rows[:, None], self.absent, self.table)
        cache = self._with(none, users)
        return replace(
            cache,
            length=jnp.where(rows, 0, self.length),
            pos=jnp.where(rows[:, None], -1, self.pos),
        )

    def admit(self, row: Array, other: Any, source: Array) -> "PagedCache":
        """Free row `row`, then copy into it the pages of row `source` of `other`."""
        length = other.length[source]
        column = jnp.arange(self.table.shape[1], dtype=jnp.int32)
        used = column * self.page < length
        is_row = jnp.arange(self.length.shape[0]) == row
        needed = is_row[:, None] & used
        cache = self.free(is_row)._take(jnp.broadcast_to(column, needed.shape), needed)
        target = cache.pool[row], jnp.where(used, cache.table[row], self.absent)
        pages = other.pool[source], other.table[source]
        pairs = zip(cache.layers, other.layers)
        return replace(
            cache,
            layers=tuple(a.copy_pages(b, pages, target) for a, b in pairs),
            pos=cache.pos.at[row].set(other.pos[source]),
            length=cache.length.at[row].set(length),
            exhausted=cache.exhausted | other.overrun,
        )

    def axes(self) -> Any:
        """Return the axes of the arrays; see `PagedLayer.axes`."""
        return replace(super().axes(), users="batch -", exhausted="batch")

    def gather(self, rows: Array) -> "PagedCache":
        """Reorder rows: row `i` of the result is row `rows[i]`.

        Full pages are shared. The first copy of a row keeps the partial page, the
        others copy it. Pages past a row's length are freed.

        Raises:
            ConfigError: there are several pools. A row may come from any other, and
                pages are shared within one pool alone.
        """
        if self.users.shape[0] > 1:
            raise ConfigError(
                f"rows of a paged cache cannot be reordered across the "
                f"{self.users.shape[0]} pools of its mesh: use the dense cache, or a "
                "mesh that does not cut the batch"
            )
        size, page = self.absent, self.page
        index = jnp.arange(rows.shape[0], dtype=jnp.int32)
        columns = jnp.arange(self.table.shape[1], dtype=jnp.int32)
        length = self.length[rows]
        table_of_rows = self.table[rows]
        # The first copy of a row keeps the partial page.
        heir = jnp.where(rows[:, None] == rows, index, rows.shape[0]).min(1) == index
        partial = length % page != 0
        keeps = columns < (length // page + (partial & heir))[:, None]
        table = jnp.where(keeps, table_of_rows, size)
        users = jnp.zeros_like(self.users).at[0, table].add(1, mode="drop")
        cache = replace(self._with(table, users), length=length, pos=self.pos[rows])
        at = (length // page)[:, None]
        copied = partial & ~heir
        cache = cache._take(at, copied[:, None])
        source = jnp.take_along_axis(table_of_rows, at, 1, mode="clip")[:, 0]
        target = jnp.take_along_axis(cache.table, at, 1, mode="clip")[:, 0]
        pages, to = (0, source), (0, jnp.where(copied, target, size))
        layers = tuple(x.copy_pages(x, pages, to) for x in cache.layers)
        return replace(cache, layers=layers)

    def _take(self, column: Array, needed: Array) -> "PagedCache":
        """Allocate pages for `column[B, m]` of the table where `needed` and absent."""
        pools, size = self.users.shape
        entries = self.table.at[jnp.arange(column.shape[0])[:, None], column]
        needed = needed & (entries.get(mode="fill", fill_value=0) >= size)
        flat = needed.reshape(pools, -1)
        allocated = jax.vmap(free_pages)(self.users, flat)
        users = self.users.at[jnp.arange(pools)[:, None], allocated].add(1, mode="drop")
        to = jnp.where(needed, column, self.table.shape[1])
        rows = jnp.arange(column.shape[0])[:, None]
        table = self.table.at[rows, to].set(
            allocated.reshape(column.shape), mode="drop"
        )
        short = (flat & (allocated >= size)).any(1)
        cache = self._with(table, users)
        return replace(cache, exhausted=self.exhausted | short)

    def _with(self, table: Array, users: Array) -> "PagedCache":
        layers = tuple(replace(layer, table=table) for layer in self.layers)
        return replace(self, layers=layers, users=users)


def free_pages(users: Array, needed: Array) -> Array:
    """Choose a free page of one pool for each of `needed`.

    Args:
        users: int32[P], the pages' use counts.
        needed: bool[M].

    Returns:
        int32[M]: P where none is needed or none is free.
    """
    size = users.shape[0]
    (free,) = jnp.nonzero(users == 0, size=needed.size, fill_value=size)
    order = jnp.cumsum(needed) - 1
    chosen = jnp.where(needed, free[jnp.maximum(order, 0)], size)
    return chosen.astype(jnp.int32)


def pages(page: int = PAGE, pool: int = 0) -> Callable[..., PagedCache]:
    """Return a maker of paged caches.

    Args:
        page: slots per page.
        pool: the number of pages; 0: as many as the rows could fill. A mesh that cuts
            the batch divides them, rounded up, over its parts.
    """
    if page < 1 or pool < 0:
        raise ConfigError(f"page={page}, pool={pool}: use page >= 1 and pool >= 0")

    def make(
        n_layers: int, batch: int, size: int, groups: int, head_dim: int, dtype: Any
    ) -> PagedCache:
        """Make an empty cache; `size` is rounded up to whole pages."""
        columns = -(-size // page)
        pools = sharding.pieces(batch, "batch")
        count = -(-(pool or batch * columns) // pools)
        shape = (pools, count, groups, page, head_dim)
        return PagedCache(
            tuple(
                PagedLayer(
                    jnp.zeros(shape, dtype),
                    jnp.zeros(shape, dtype),
                    jnp.full((batch, columns), count, jnp.int32),
                )
                for _ in range(n_layers)
            ),
            jnp.full((batch, columns * page), -1, jnp.int32),
            jnp.zeros((batch,), jnp.int32),
            jnp.zeros((pools, count), jnp.int32),
            jnp.zeros((pools,), bool),
        )

    return make
