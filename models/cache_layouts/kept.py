"""Layers of which a cache policy keeps some slots, head by head.

As in `held`, slots stay logical everywhere else: a row's tokens seen are `length`, and
a layer that keeps `length - shift` of them translates. Here the kept ones need not be
the newest. `pos` tells each slot's token; slots stay in the order of their tokens, and
committed ones a prefix, as every kernel expects.

What a policy needs to choose lies beside the slots and moves with them: `notes` by
slot, `extra` by row, and the last queries, from which a slot's past attention can be
computed (`kernels.attention_columns`). Neither the loops nor gathered rows, continuous
batching and meshes need code for a policy.

The slots themselves are a layer of another layout, dense or of codes, which gives up
slots by `take(index, before, after)`. To it a token's position is its slot.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from kernels.attention_columns import columns
from models import base
from models.cache_layouts.held import HeldLayer

STEP = 16  # slots: capacities are multiples


@struct.dataclass
class Queries:
    """The newest queries; place r is for the query of token `first + r`."""

    q: Array  # [B, R, G, H / G, d], rotated and scaled
    pos: Array  # int32[B, R]: the token whose query the place holds, -1: none
    first: Array  # int32[B]
    sinks: Array | None = None  # float32[B, G, H / G]: scores without a slot


@struct.dataclass
class KeptLayer(HeldLayer):
    """A layer's kept slots. `window` is 0: windows are layers of `held`."""

    store: Any  # C slots
    pos: Array  # int32[B, G, C]: the token in a slot; undefined in slots not in use
    queries: Queries | None
    notes: dict[str, Array]  # [B, G, C, ...]
    extra: dict[str, Array]  # [B, G, ...]
    budget: Array  # int32[B]: slots that the policy keeps
    prompt: Array  # int32[B]: tokens of the prompt, or of what is compressed of it
    after: int = struct.field(pytree_node=False)  # slots once the prompt is read
    recent: int = struct.field(pytree_node=False)  # places for queries, then
    is_read: bool = struct.field(pytree_node=False, default=False)  # the prompt is
    bias: Array | None = None
    """float32[B, G, C], added to the scores of attention; 0 in slots not in use"""
    softcap: float = struct.field(pytree_node=False, default=0.0)  # of the scores

    @property
    def streamed(self) -> bool:  # type: ignore[override]
        return self.store.streamed

    @property
    def span(self) -> int:  # type: ignore[override]
        return self.store.span

    def append(self, slots: Array, k: Array, v: Array) -> "KeptLayer":
        """Write `k`, `v` `[B, N, G, d]` at logical `slots[B, N]`; drop those >= S."""
        own = self._own(slots)
        pos = self._put(self.pos, own, slots[:, None])
        layer = replace(self, store=self.store.append(own, k, v), pos=pos)
        if layer.queries is None:
            return layer
        asked, at = layer.queries, self._place(slots)
        none = asked.pos.at[at].set(-1, mode="drop", unique_indices=True)
        return replace(layer, queries=replace(asked, pos=none))

    def noted(self, slots: Array, q: Array, sinks: Array | None = None) -> "KeptLayer":
        """Keep the queries of the nodes at logical `slots`.

        Args:
            slots: int32[B, N].
            q: [B, N, G, H / G, d], rotated and scaled.
            sinks: [G, H / G] of the model, where it has them.
        """
        asked = self.queries
        if asked is None:
            return self
        at = self._place(slots)
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        new = asked.q.at[at].set(q.astype(asked.q.dtype), **put)
        pos = asked.pos.at[at].set(slots, **put)
        asked = replace(asked, q=new, pos=pos)
        if asked.sinks is not None and sinks is not None:
            every = jnp.broadcast_to(sinks, asked.sinks.shape)
            asked = replace(asked, sinks=every.astype(asked.sinks.dtype))
        return replace(self, queries=asked)

    def move(self, source: Array, target: Array) -> "KeptLayer":
        """Copy logical slots `source[B, M]` to `target[B, M]`; drop targets >= S."""
        own = self._own(target)
        store = self.store.move(source - self.shift[:, None], own)
        layer = replace(
            self, store=store, pos=self._put(self.pos, own, target[:, None])
        )
        if layer.queries is None:
            return layer
        asked, (rows, from_) = layer.queries, self._place(source)
        q = asked.q.at[rows, from_].get(mode="clip")
        is_there = asked.pos.at[rows, from_].get(mode="clip") == source
        at = self._place(target)
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        pos = asked.pos.at[at].set(jnp.where(is_there, target, -1), **put)
        asked = replace(asked, q=asked.q.at[at].set(q, **put), pos=pos)
        return replace(layer, queries=asked)

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; `seen` and `positions` are logical."""
        own = replace(seen, prefix=seen.prefix - self.shift)
        at = positions - self.shift[:, None]
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        slots = jnp.broadcast_to(slots, (len(at), self.capacity))
        if self.bias is not None:
            settings["bias"] = self.bias
        return self.store.attend(q, own, at, slots, **settings)

    def settle(self, before: Array, length: Array) -> "KeptLayer":
        """Drop nothing: a policy's `retain` does, where its rule says."""
        used = before - self.shift, length - self.shift
        return replace(self, store=self.store.settle(*used))

    def used(self, length: Array) -> Array:
        """Return int32[B, 1]: the slots in use of rows that have seen `length`."""
        return (length - self.shift)[:, None]

    def tokens(self, length: Array) -> Array:
        """Return int32[B, G, C]: the token in each slot, -1 in those not in use."""
        index = jnp.arange(self.capacity, dtype=jnp.int32)
        return jnp.where(index < self.used(length)[..., None], self.pos, -1)

    def asked(self, length: Array) -> tuple[Array, Array]:
        """Return the queries [B, R, H, d], and the token of each int32[B, R] or -1."""
        held = self.queries
        assert held is not None
        due = held.first[:, None] + jnp.arange(held.pos.shape[1], dtype=jnp.int32)
        is_there = (held.pos == due) & (due < length[:, None])
        q = held.q.reshape(*held.q.shape[:2], -1, held.q.shape[-1])
        return q, jnp.where(is_there, due, -1)

    def received(
        self, q: Array, weight: Array, tokens: Array, held: Array, **settings: Any
    ) -> Array:
        """Sum the attention weights that each slot gets: float32[B, G, C].

        Args:
            q: [B, R, H, d], as of `asked`.
            weight: float32[B, R], of each query.
            tokens: int32[B, R]: the queries' tokens.
            held: int32[B, G, C]: the slots' tokens.
            settings: others of `attention_columns.columns`.
        """
        sinks = None if self.queries is None else self.queries.sinks
        if sinks is not None:
            sinks = sinks.reshape(len(sinks), -1)
        about: Any = {"softcap": self.softcap, "bias": self.bias, "sinks": sinks}
        k = self.store.read()[0]
        return columns(q, k, weight, tokens, held, **about, **settings)

    def forget(self, first: Array) -> "KeptLayer":
        """Drop the queries of tokens before `first` int32[B]."""
        if self.queries is None:
            return self
        return replace(self, queries=_newest(self.queries, first, None))

    def keep(self, index: Array, count: Array, length: Array) -> "KeptLayer":
        """Let slot j of head g be what slot `index[b, g, j]` was.

        Args:
            index: int32[B, G, M], of which the first `count` are in use, in the order
                of their tokens.
            count: int32[B].
            length: int32[B], tokens seen.
        """
        rows, groups = (jnp.arange(n) for n in self.pos.shape[:2])
        at = rows[:, None, None], groups[None, :, None], index
        stays = jnp.arange(index.shape[2], dtype=jnp.int32) < count[:, None, None]

        def note(x: Array) -> Array:
            """Take the notes of what stays; a slot's next token begins with zeros."""
            to = stays.reshape(*stays.shape, *(1,) * (x.ndim - 3))
            return jnp.where(to, x.at[at].get(mode="clip"), jnp.zeros((), x.dtype))

        return replace(
            self,
            store=self.store.take(index, length - self.shift, count),
            shift=length - count,
            pos=self.pos.at[at].get(mode="clip"),
            notes=jax.tree.map(note, self.notes),
            bias=jax.tree.map(note, self.bias),
        )

    def resized(self, length: Array) -> "KeptLayer":
        """Return the layer with the places that it has once the prompt is read."""
        layer = replace(self, is_read=True)
        if self.after != self.capacity:
            store = self.store.sized(self.after)
            slots = store.slots
            more = ((0, 0), (0, 0), (0, max(slots - self.capacity, 0)))
            fit = lambda x: jnp.pad(x, more + ((0, 0),) * (x.ndim - 3))[:, :, :slots]
            beside = (self.pos, self.notes, self.bias)
            pos, notes, bias = jax.tree.map(fit, beside)
            layer = replace(layer, store=store, pos=pos, notes=notes, bias=bias)
        asked = self.queries
        if asked is not None:
            kept = _newest(asked, asked.first, self.recent) if self.recent else None
            layer = replace(layer, queries=kept)
        return layer

    def grown(self, more: int) -> "HeldLayer":
        raise NotImplementedError("searches keep the whole cache")

    def gather(self, rows: Array) -> "KeptLayer":
        store = self.store.gather(rows)
        rest = jax.tree.map(lambda x: x[rows], self)
        return replace(rest, store=store)

    def axes(self) -> Any:
        heads: Any = "batch kv_heads"
        asked: Any = "batch - kv_heads"
        rows: Any = "batch"
        names: dict[str, Any] = {
            "store": self.store.axes(),
            "shift": rows,
            "budget": rows,
            "prompt": rows,
            "pos": heads,
            "notes": jax.tree.map(lambda x: heads, self.notes),
            "extra": jax.tree.map(lambda x: heads, self.extra),
        }
        if self.queries is not None:
            sinks = None if self.queries.sinks is None else heads
            names["queries"] = Queries(asked, rows, rows, sinks)
        if self.bias is not None:
            names["bias"] = heads
        return replace(self, **names)

    def _put(self, x: Array, own: Array, new: Array) -> Array:
        rows, groups = (jnp.arange(n) for n in self.pos.shape[:2])
        at = rows[:, None, None], groups[None, :, None], own[:, None]
        return x.at[at].set(new, mode="drop", unique_indices=True)

    def _place(self, slots: Array) -> tuple[Array, Array]:
        """Return the indices of slots' queries; distinct ones >= R where none is."""
        assert self.queries is not None
        places = self.queries.pos.shape[1]
        place = slots - self.queries.first[:, None]
        none = (slots >= self.size) | (place < 0)
        rows = jnp.arange(slots.shape[0])[:, None]
        return rows, jnp.where(none, places + slots, place)


def _newest(asked: Queries, first: Array, places: int | None) -> Queries:
    """Let place 0 be for token `first` int32[B], of `places` (None: as many)."""
    old = asked.pos.shape[1]
    index = jnp.arange(old if places is None else places, dtype=jnp.int32)
    source = (first - asked.first)[:, None] + index
    rows = jnp.arange(first.shape[0])[:, None]
    pos = asked.pos.at[rows, source].get(mode="fill", fill_value=-1)
    q = asked.q.at[rows, source].get(mode="clip")
    return replace(asked, q=q, pos=pos, first=first)


class LayerSizes(NamedTuple):
    """The places of a kept layer, while the prompt is read and afterwards."""

    slots: int
    after: int
    queries: int = 0
    recent: int = 0  # queries, afterwards


def layer(
    store: Any,
    sizes: LayerSizes,
    size: int,
    heads: tuple[int, int],
    first: Array,
    notes: Mapping[str, Any],
    extra: Mapping[str, Any],
    rows: tuple[Array, Array],
    biased: bool = False,
    softcap: float = 0.0,
    sunk: bool = False,
) -> KeptLayer:
    """Make an empty kept layer.

    Args:
        store: an empty layer of `sizes.slots` slots.
        sizes: its places.
        size: logical slots.
        heads: (query heads per KV head, their dimension).
        first: int32[B]: the first token whose query is kept.
        notes: name -> dtype and the dimensions behind [B, G, C].
        extra: name -> dtype and the dimensions behind [B, G].
        rows: the budget and the tokens of the prompt, int32[B] both.
        biased: whether the layer has a bias.
        softcap: bound of attention's scores; 0: none.
        sunk: whether the model has attention sinks.
    """
    k, _ = jax.eval_shape(store.read)
    batch, groups, slots = k.shape[:3]
    shape = (batch, sizes.queries, groups, *heads)
    none = jnp.full(shape[:2], -1, jnp.int32)
    sinks = jnp.zeros((batch, groups, heads[0])) if sunk else None
    q = jnp.zeros(shape, k.dtype)
    asked = Queries(q, none, first, sinks) if sizes.queries else None
    empty = lambda about, *lead: jnp.zeros((*lead, *about[1]), about[0])
    return KeptLayer(
        store=store,
        shift=jnp.zeros((batch,), jnp.int32),
        size=size,
        window=0,
        every=0,
        pos=jnp.full((batch, groups, slots), -1, jnp.int32),
        queries=asked,
        notes={n: empty(about, batch, groups, slots) for n, about in notes.items()},
        extra={n: empty(about, batch, groups) for n, about in extra.items()},
        budget=rows[0],
        prompt=rows[1],
        after=sizes.after,
        recent=sizes.recent,
        bias=jnp.zeros((batch, groups, slots)) if biased else None,
        softcap=softcap,
    )


def once(change: Callable[[Any, Array], Any], layer: Any, due: Array) -> Any:
    """Apply `change(layer, due)` if any row is `due` bool[B], else nothing.

    In a loop of one round at most: XLA copies what both branches of a `cond` write.
    """

    def body(carry: tuple) -> tuple:
        layer, due = carry
        return change(layer, due), jnp.zeros_like(due)

    return lax.while_loop(lambda carry: carry[1].any(), body, (layer, due))[0]
