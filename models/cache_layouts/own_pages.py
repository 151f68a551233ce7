"""Layers whose KV heads keep unequal numbers of slots, in pages of their own.

With one array a head would hold as many slots as the largest. Here a row of a layer has
one pool of pages [page, d], and every head a table of them: heads share the budget of
the row, and what one gives up another uses. Slots stay logical everywhere else: token t
of head g, if it was written after the last eviction, is in slot `t - shift[b, g]`.

A head gets its pages when a policy decides what it keeps: those of its slots, and of
`spare` more for the tokens to come. They are new pages; those it had before are free
once they are copied. No page ever has two users, and a round allocates nothing.

A pool belongs to a row, so that gathered rows, continuous batching and meshes that cut
the batch treat it as any array of rows. Heads share it: no mesh can cut them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from kernels.paged_tree_attention import paged_tree_attention
from models import base
from models.cache_layouts.held import HeldLayer
from models.cache_layouts.kept import KeptLayer

PAGE = 16  # slots


@struct.dataclass
class Pool:
    """The P pages of each row; page numbers of the table count within a row."""

    k: Array  # [B, P, page, d]
    v: Array  # [B, P, page, d]
    pos: Array  # int32[B, P, page]: the token in a slot; undefined where none is
    table: Array  # int32[B, G, S / page]; P where there is no page

    @property
    def page(self) -> int:
        return self.pos.shape[2]

    @property
    def slots(self) -> int:
        return self.table.shape[2] * self.page

    @property
    def in_use(self) -> Array:
        """int32[B]: pages that a head has."""
        return (self.table < self.k.shape[1]).sum((1, 2), dtype=jnp.int32)

    def at(self, slots: Array) -> tuple[Array, Array, Array]:
        """Return the indices of slots int32[B, G, N]; page P where there is none."""
        rows, groups = (jnp.arange(n)[:, None, None] for n in self.table.shape[:2])
        entries = self.table.at[rows, groups[:, 0], slots // self.page]
        pages = entries.get(mode="fill", fill_value=self.k.shape[1])
        return rows, pages, slots % self.page


@struct.dataclass
class HeadPages(HeldLayer):
    """A layer of unequal heads, once the prompt is read. `window` is 0."""

    store: Any  # Pool
    shift: Array  # int32[B, G]
    spare: Array  # int32[B]: slots that a head has behind those that a policy kept
    budget: Array  # int32[B]: slots that a policy keeps of a head on average

    streamed = True

    def append(self, slots: Array, k: Array, v: Array) -> "HeadPages":
        """Write `k`, `v` `[B, N, G, d]` at logical `slots[B, N]`; drop those >= S."""
        tokens = jnp.broadcast_to(slots[:, None], (*self.shift.shape, slots.shape[1]))
        new = k.swapaxes(1, 2), v.swapaxes(1, 2), tokens
        return self._written(self._own(slots), *new)

    def read(self) -> tuple[Array, Array]:
        """Copy keys and values into dense arrays [B, G, C, d]."""
        k, v = (self._dense(x) for x in (self.store.k, self.store.v))
        return k, v

    def view(self, mask: Array) -> Array:
        raise NotImplementedError("the heads' slots differ")

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; `seen` is logical."""
        pool, (batch, pages) = self.store, self.store.k.shape[:2]
        # The pools of all rows are one; a row numbers its own pages.
        offset = pages * jnp.arange(batch, dtype=jnp.int32)[:, None, None]
        return paged_tree_attention(
            q,
            pool.k.reshape(-1, 1, *pool.k.shape[2:]),
            pool.v.reshape(-1, 1, *pool.v.shape[2:]),
            jnp.where(pool.table < pages, pool.table + offset, batch * pages),
            seen.prefix[:, None] - self.shift,
            seen.ancestors,
            **settings,
        )

    def move(self, source: Array, target: Array) -> "HeadPages":
        """Copy logical slots `source[B, M]` to `target[B, M]`; drop targets >= S."""
        pool = self.store
        at = pool.at(source[:, None] - self.shift[..., None])
        k, v = (x.at[at].get(mode="clip") for x in (pool.k, pool.v))
        tokens = jnp.broadcast_to(target[:, None], k.shape[:3])
        return self._written(self._own(target), k, v, tokens)

    def settle(self, before: Array, length: Array) -> "HeadPages":
        return self

    def used(self, length: Array) -> Array:
        """Return int32[B, G]: the slots in use of rows that have seen `length`."""
        return length[:, None] - self.shift

    def tokens(self, length: Array) -> Array:
        """Return int32[B, G, C]: the token in each slot, -1 in those not in use."""
        index = jnp.arange(self.capacity, dtype=jnp.int32)
        is_used = index < self.used(length)[..., None]
        return jnp.where(is_used, self._dense(self.store.pos), -1)

    def keep(self, index: Array, count: Array, length: Array) -> "HeadPages":
        """Let slot j of head g be what slot `index[b, g, j]` was, in new pages.

        Args:
            index: int32[B, G, M], of which the first `count` are in use, in the order
                of their tokens.
            count: int32[B, G], whose sum in a row may be no larger than it was.
            length: int32[B], tokens seen.
        """
        pool = self.store

        def of(rows: Array, heads: Array, slots: Array) -> tuple:
            pages = pool.table.at[rows, heads, slots // pool.page].get(mode="clip")
            at = rows, pages, slots % pool.page
            old = pool.k, pool.v, pool.pos
            return tuple(x.at[at].get(mode="clip") for x in old)

        shape = (pool.table.shape[2], pool.k.shape[1], pool.page)
        new = _arranged(of, index, count, self.spare, shape)
        return replace(self, store=new, shift=length[:, None] - count)

    def take(self, index: Array, shift: Array) -> "HeadPages":
        raise NotImplementedError("use `keep`: heads give up slots of their own")

    def sized(self, slots: int) -> "HeadPages":
        raise NotImplementedError("a pool has the pages of its row's budget")

    def grown(self, more: int) -> "HeadPages":
        raise NotImplementedError("searches keep the whole cache")

    def gather(self, rows: Array) -> "HeadPages":
        return jax.tree.map(lambda x: x[rows], self)

    def axes(self) -> Any:
        return jax.tree.map(lambda x: "batch", self)

    def _own(self, slots: Array) -> Array:
        """Translate logical slots [B, N] to [B, G, N]; those without one get >= C."""
        own = slots[:, None] - self.shift[..., None]
        none = (slots[:, None] >= self.size) | (own < 0)
        return jnp.where(none, self.capacity, own)

    def _written(self, own: Array, k: Array, v: Array, tokens: Array) -> "HeadPages":
        pool = self.store
        at = pool.at(own)
        put = lambda x, new: x.at[at].set(new.astype(x.dtype), mode="drop")
        new = replace(
            pool, k=put(pool.k, k), v=put(pool.v, v), pos=put(pool.pos, tokens)
        )
        return replace(self, store=new)

    def _dense(self, x: Array) -> Array:
        """Copy the pages of [B, P, page, ...] to [B, G, C, ...]."""
        rows = jnp.arange(len(x))[:, None, None]
        pages = x.at[rows, self.store.table].get(mode="clip")
        return pages.reshape(*pages.shape[:2], -1, *x.shape[3:])


def of_layer(
    layer: KeptLayer, index: Array, count: Array, length: Array, keep: Array, page: int
) -> HeadPages:
    """Give the heads of a layer whose prompt is read pages of their own.

    Args:
        layer: all its heads have the same slots.
        index: int32[B, G, M], as in `HeadPages.keep`.
        count: int32[B, G], whose sum in a row is at most G * `keep`.
        length: int32[B], tokens seen.
        keep: int32[B], the heads' budget on average, as far as there are tokens for it;
            the rest of `layer.after` slots is for those to come.
        page: slots of a page.
    """
    groups, (k, v) = count.shape[1], layer.store.read()
    pages = groups * layer.after // page + groups
    shape = (-(-groups * layer.after // page), pages, page)

    def of(rows: Array, heads: Array, slots: Array) -> tuple:
        at = rows, heads, slots
        return tuple(x.at[at].get(mode="clip") for x in (k, v, layer.pos))

    spare = layer.after - jnp.minimum(keep, layer.used(length)[:, 0])
    return HeadPages(
        store=_arranged(of, index, count, spare, shape),
        shift=length[:, None] - count,
        size=layer.size,
        window=0,
        every=0,
        spare=spare,
        budget=keep,
    )


def _arranged(
    of: Callable, index: Array, count: Array, spare: Array, shape: tuple[int, int, int]
) -> Pool:
    """Return new pages and the tables of them.

    Args:
        of: `of(rows, heads, slots)` looks up keys, values and tokens of old slots.
        index, count: as in `HeadPages.keep`.
        spare: int32[B]: slots of a head beyond `count`.
        shape: (columns of a table, pages, slots of a page).
    """
    columns, total, page = shape
    pages = -(-(count + spare[:, None]) // page)
    ends = jnp.cumsum(pages, 1)
    first = ends - pages
    column = jnp.arange(columns, dtype=jnp.int32)
    has = column < pages[..., None]
    table = jnp.where(has, first[..., None] + column, total).astype(jnp.int32)
    # Which slot of which head each slot of the pool is.
    number = jnp.arange(total, dtype=jnp.int32)
    head = (number[None, :, None] >= ends[:, None]).sum(2, dtype=jnp.int32)
    head = jnp.minimum(head, count.shape[1] - 1)
    rows = jnp.arange(len(count))[:, None]
    slot = (number - first[rows, head])[..., None] * page + jnp.arange(page)
    rows, head = rows[..., None], head[..., None]
    source = index.at[rows, head, slot].get(mode="clip")
    k, v, pos = of(rows, head, source)
    return Pool(k, v, pos, table)
