"""The paged cache layout: rows own pages of a pool, and share those of a prefix.

`transformer(config, cache=paged.pages())`. Kwon et al., *Efficient Memory Management
for Large Language Model Serving with PagedAttention*, 2023, arXiv 2309.06180, sections
4.1 to 4.4. A page is allocated when a block first writes to it and freed by `free`;
pages of rejected drafts serve the row's next tokens. Shared pages are full and never
written: a forked row copies its one partial page (the copy on write of section 4.4, at
the only time it can be needed).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels.paged_tree_attention import paged_tree_attention
from kernels.paged_tree_attention.reference import written_out
from models import base
from models.cache_layouts import kv_cache
from models.errors import ConfigError

PAGE = 128


@struct.dataclass
class PagedLayer:
    """One layer's pool of P pages; all layers have the same table."""

    k: Array  # [P, G, page, d]
    v: Array  # [P, G, page, d]
    table: Array  # int32[B, S / page]: P where there is no page

    streamed = True  # no layer is one array
    shares = False

    def append(self, slots: Array, k: Array, v: Array) -> "PagedLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`; slots >= S are dropped."""
        at = self._at(slots)
        put: dict[str, Any] = {"mode": "drop"}  # dropped slots share page P
        return replace(
            self,
            k=self.k.at[at].set(k.swapaxes(1, 2).astype(self.k.dtype), **put),
            v=self.v.at[at].set(v.swapaxes(1, 2).astype(self.v.dtype), **put),
        )

    def read(self) -> tuple[Array, Array]:
        """Copy keys and values into dense arrays `[B, G, S, d]`."""
        return written_out(self.k, self.table), written_out(self.v, self.table)

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
            self.k,
            self.v,
            self.table,
            seen.prefix,
            seen.ancestors,
            positions=positions,
            key_positions=key_positions,
            **settings,
        )

    def move(self, source: Array, target: Array) -> "PagedLayer":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        at = self._at(source)
        k, v = self.k.at[at].get(mode="clip"), self.v.at[at].get(mode="clip")
        return self.append(target, k.swapaxes(1, 2), v.swapaxes(1, 2))

    def settle(self, before: Array, length: Array) -> "PagedLayer":
        return self

    def axes(self) -> Any:
        """Return the axes of the arrays; any row may own any page: no batch axis."""
        names: Any = "- kv_heads - -"
        table: Any = "batch -"
        return PagedLayer(names, names, table)

    def copy_pages(
        self, of: "PagedLayer", source: Array, target: Array
    ) -> "PagedLayer":
        """Copy pages `source[i]` of a pool to `target[i]`; targets >= P are dropped."""
        k, v = of.k.at[source].get(mode="clip"), of.v.at[source].get(mode="clip")
        return replace(
            self,
            k=self.k.at[target].set(k, mode="drop"),
            v=self.v.at[target].set(v, mode="drop"),
        )

    def _at(self, slots: Array) -> tuple:
        pages, groups, page, _ = self.k.shape
        rows = jnp.arange(slots.shape[0])[:, None]
        page_ids = self.table.at[rows, slots // page].get(mode="fill", fill_value=pages)
        at = jnp.arange(groups)[None, :, None]
        return page_ids[:, None], at, (slots % page)[:, None]


@struct.dataclass
class PagedCache(kv_cache.KVCache):
    """A `KVCache` with the use counts of its pool of P pages."""

    users: Array  # int32[P]: number of rows whose table has the page
    exhausted: Array  # bool[]: an allocation found no free page, so texts are wrong

    @property
    def table(self) -> Array:
        """int32[B, S / page]"""
        return self.layers[0].table

    @property
    def page(self) -> int:
        return self.layers[0].k.shape[2]

    @property
    def overrun(self) -> Array:
        return self.exhausted

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
        pages = jnp.where(rows[:, None], self.table, self.users.shape[0])
        users = self.users.at[pages].add(-1, mode="drop")
        none = jnp.where(rows[:, None], self.users.shape[0], self.table)
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
        target = jnp.where(used, cache.table[row], self.users.shape[0])
        pairs = zip(cache.layers, other.layers)
        return replace(
            cache,
            layers=tuple(a.copy_pages(b, b.table[source], target) for a, b in pairs),
            pos=cache.pos.at[row].set(other.pos[source]),
            length=cache.length.at[row].set(length),
            exhausted=cache.exhausted | other.exhausted,
        )

    def axes(self) -> Any:
        """Return the axes of the arrays; the pool is sharded by KV heads alone."""
        return replace(super().axes(), users="", exhausted="")

    def gather(self, rows: Array) -> "PagedCache":
        """Reorder rows: row `i` of the result is row `rows[i]`.

        Full pages are shared. The first copy of a row keeps the partial page, the
        others copy it. Pages past a row's length are freed.
        """
        size, page = self.users.shape[0], self.page
        index = jnp.arange(rows.shape[0], dtype=jnp.int32)
        columns = jnp.arange(self.table.shape[1], dtype=jnp.int32)
        length = self.length[rows]
        table_of_rows = self.table[rows]
        # The first copy of a row keeps the partial page.
        heir = jnp.where(rows[:, None] == rows, index, rows.shape[0]).min(1) == index
        partial = length % page != 0
        keeps = columns < (length // page + (partial & heir))[:, None]
        table = jnp.where(keeps, table_of_rows, size)
        users = jnp.zeros_like(self.users).at[table].add(1, mode="drop")
        cache = replace(self._with(table, users), length=length, pos=self.pos[rows])
        at = (length // page)[:, None]
        copied = partial & ~heir
        cache = cache._take(at, copied[:, None])
        source = jnp.take_along_axis(table_of_rows, at, 1, mode="clip")[:, 0]
        target = jnp.take_along_axis(cache.table, at, 1, mode="clip")[:, 0]
        target = jnp.where(copied, target, size)
        layers = tuple(x.copy_pages(x, source, target) for x in cache.layers)
        return replace(cache, layers=layers)

    def _take(self, column: Array, needed: Array) -> "PagedCache":
        """Allocate pages for `column[B, m]` of the table where `needed` and absent."""
        size = self.users.shape[0]
        entries = self.table.at[jnp.arange(column.shape[0])[:, None], column]
        needed = needed & (entries.get(mode="fill", fill_value=0) >= size)
        flat = needed.reshape(-1)
        (free,) = jnp.nonzero(self.users == 0, size=flat.size, fill_value=size)
        order = jnp.cumsum(flat) - 1
        allocated = jnp.where(flat, free[jnp.maximum(order, 0)], size).astype(jnp.int32)
        users = self.users.at[allocated].add(1, mode="drop")
        to = jnp.where(needed, column, self.table.shape[1])
        rows = jnp.arange(column.shape[0])[:, None]
        table = self.table.at[rows, to].set(
            allocated.reshape(column.shape), mode="drop"
        )
        short = (flat & (allocated >= size)).any()
        cache = self._with(table, users)
        return replace(cache, exhausted=self.exhausted | short)

    def _with(self, table: Array, users: Array) -> "PagedCache":
        layers = tuple(replace(layer, table=table) for layer in self.layers)
        return replace(self, layers=layers, users=users)


def pages(page: int = PAGE, pool: int = 0) -> Callable[..., PagedCache]:
    """Return a maker of paged caches.

    Args:
        page: slots per page.
        pool: the number of pages; 0: as many as the rows could fill.
    """
    if page < 1 or pool < 0:
        raise ConfigError(f"page={page}, pool={pool}: use page >= 1 and pool >= 0")

    def make(
        n_layers: int, batch: int, size: int, groups: int, head_dim: int, dtype: Any
    ) -> PagedCache:
        """Make an empty cache; `size` is rounded up to whole pages."""
        columns = -(-size // page)
        count = pool or batch * columns
        shape = (count, groups, page, head_dim)
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
            jnp.zeros((count,), jnp.int32),
            jnp.zeros((), bool),
        )

    return make
