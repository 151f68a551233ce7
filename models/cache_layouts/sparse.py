"""Layers that keep every slot and read few of them.

Slot and token number are the same. A `Reader`, which a cache policy makes, scores the
slots; a node reads those of the highest scores, and every slot from `start` on that it
sees. In prompts, before `is_read`, a layer reads all slots.

A reader selects in one of two ways. With `listed`, the layer holds one list for all
nodes, which the policy renews between rounds (`extra`: "index", "chosen", "since").
Else each node selects by its own query. Blocks of one node then gather their slots, and
wider ones mask the others, which is the reference form.

What is selected may pass from layer to layer within a model call, as `carry`. A call of
some of the layers begins with the newest slots.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from models import base
from models.cache_layouts.kept import KeptLayer, LayerSizes, layer

NEGATIVE = -1e30

# What a layer does with the slots of a node:
WHOLE = "whole"  # it reads all
SELECT = "select"  # it reads all, and selects for the layers behind it
FOLLOW = "follow"  # it reads what another layer selected
OWN = "own"  # it selects, and reads what it selected


@struct.dataclass
class Chosen:
    """Slots of nodes, or with M = 1 of all nodes of a block."""

    index: Array  # int32[B, G, M, K]: different slots
    is_chosen: Array  # bool[B, G, M, K]


class Asked(NamedTuple):
    """Nodes whose slots are scored."""

    q: Array  # [B, N, G, H / G, d], rotated and scaled
    seen: Array  # bool[B, N, S]
    prefix: Array  # int32[B]: committed slots
    ancestors: Array  # uint32[B, N, W]: see `base.Visibility`


class Reader(NamedTuple):
    """How a layer reads; static, so all of it is hashable.

    - `role`: one of the four above.
    - `places`: the most units that are selected.
    - `score(layer, asked) -> float32[B, G, N, U]`: of U = S / `unit` units of slots;
      -inf for those that a node cannot read. Values are compared in bfloat16; of equal
      ones the older unit is taken.
    - `units(layer) -> int32[B]`: units that a row selects, at most `places`.
    - `start(layer, prefix int32[B]) -> int32[B]`: from this slot on, a node reads what
      it sees. None: it selects among all slots, and its newest one is always selected.
    - `width`: slots from `start` to the end of a block, at most.
    - `listed`: the layer holds the list; see above.
    - `mark(layer, k [B, N, G, d]) -> {name: [B, N, G, ...]}`: notes of new slots.
    """

    role: str
    places: int = 1
    score: Callable[["SparseLayer", Asked], Array] | None = None
    units: Callable[["SparseLayer"], Array] | None = None
    start: Callable[["SparseLayer", Array], Array] | None = None
    unit: int = 1
    width: int = 0
    listed: bool = False
    mark: Callable[["SparseLayer", Array], dict[str, Array]] | None = None


@struct.dataclass
class SparseLayer(KeptLayer):
    """A layer of all slots, of which a node reads those that `reader` selects.

    `notes` are of slots and move with them, `extra` is of rows, and `given` is what a
    call gives its rows: [B, G, ...], never stored. `shift` is 0 and `pos` is empty:
    token t is in slot t.
    """

    given: dict[str, Array] = struct.field(default_factory=dict)
    reader: Reader = struct.field(pytree_node=False, default=Reader(WHOLE))

    def append(self, slots: Array, k: Array, v: Array) -> "SparseLayer":
        """Write `k`, `v` `[B, N, G, d]` at `slots[B, N]`, and their notes."""
        after: Any = super().append(slots, k, v)
        if self.reader.mark is None:
            return after
        new = self.reader.mark(self, k)
        notes = {name: self._put_note(x, slots, new[name]) for name, x in _of(self)}
        return replace(after, notes=notes)

    def move(self, source: Array, target: Array) -> "SparseLayer":
        """Copy slots `source[B, M]` to `target[B, M]`, with their notes."""
        after: Any = super().move(source, target)
        rows = jnp.arange(source.shape[0])[:, None]
        taken = {name: x[rows, :, source] for name, x in _of(self)}
        notes = {name: self._put_note(x, target, taken[name]) for name, x in _of(self)}
        return replace(after, notes=notes)

    def view(self, mask: Array) -> Array:
        """Return the mask bool[B, N, S]: the layer has every slot."""
        return mask

    def tokens(self, length: Array) -> Array:
        """Return int32[B, G, S]: the token in each slot, -1 in those not in use."""
        index = jnp.arange(self.capacity, dtype=jnp.int32)
        held = jnp.where(index < length[:, None, None], index, -1)
        return jnp.broadcast_to(held, (*self.store.k.shape[:2], self.capacity))

    def attend(self, q, seen, positions, key_positions, **settings):
        """Attend to all slots; arguments as in `kv_cache.DenseLayer.attend`."""
        return self.store.attend(q, seen, positions, key_positions, **settings)

    def axes(self) -> Any:
        heads: Any = "batch kv_heads"
        names: Any = super().axes()
        return replace(names, given=jax.tree.map(lambda x: heads, self.given))

    @property
    def reads_few(self) -> bool:
        """Whether nodes have slots selected, here or for layers behind."""
        return self.is_read and self.reader.role != WHOLE

    def choose(self, asked: Asked) -> Chosen:
        """Select the slots of every node."""
        reader = self.reader
        assert reader.score is not None
        assert reader.units is not None
        scores = reader.score(self, asked).astype(jnp.bfloat16).astype(jnp.float32)
        if reader.start is None and not reader.listed:
            scores = jnp.where(_newest(asked.seen)[:, None], jnp.inf, scores)
        return _best(scores, reader.places, reader.units(self), reader.unit)

    def fresh(self, asked: Asked) -> Chosen:
        """Return the newest slots of every node: what no layer has selected yet."""
        reader = self.reader
        assert reader.units is not None
        slots = jnp.arange(asked.seen.shape[-1], dtype=jnp.float32)
        scores = jnp.where(asked.seen, slots, -jnp.inf)[:, None]
        scores = jnp.broadcast_to(
            scores, (scores.shape[0], self.store.k.shape[1], *scores.shape[2:])
        )
        return _best(scores, reader.places, reader.units(self), 1)

    def listed(self) -> Chosen:
        """Return the list that the layer holds, of all nodes."""
        index = self.extra["index"][:, :, None]
        order = jnp.arange(index.shape[-1], dtype=jnp.int32)
        return Chosen(index, order < self.extra["chosen"][:, :, None, None])

    def renewed(self, chosen: Chosen, since: Array, due: Array) -> "SparseLayer":
        """Hold the list `chosen`, M = 1, of slots before `since`, in rows `due`."""
        # What is chosen is in front: `_best` orders by score.
        new = {
            "index": chosen.index[:, :, 0],
            "chosen": chosen.is_chosen[:, :, 0].sum(-1, dtype=jnp.int32),
            "since": jnp.broadcast_to(since[:, None], self.extra["since"].shape),
        }
        pick = lambda new, old: jnp.where(
            due.reshape(-1, *(1,) * (new.ndim - 1)), new, old
        )
        held = {name: pick(x, self.extra[name]) for name, x in new.items()}
        return replace(self, extra={**self.extra, **held})

    def read_few(
        self, asked: Asked, carry: Chosen | None, softcap: float
    ) -> tuple[Array, Chosen | None]:
        """Attend to the selected slots; return the outputs like q, and the carry.

        A layer that selects for those behind it returns q: it reads all slots.
        """
        reader = self.reader
        if reader.listed:
            if reader.role == SELECT:
                return asked.q, carry
            since = self.extra["since"][:, 0]
            return _attend(self, asked, self.listed(), since, softcap), carry
        if reader.role == SELECT:
            return asked.q, self.choose(asked)
        own = self.choose(asked) if reader.role == OWN else carry
        assert own is not None
        start = None if reader.start is None else reader.start(self, asked.prefix)
        return _attend(self, asked, own, start, softcap), carry

    def _put_note(self, note: Array, slots: Array, new: Array) -> Array:
        """Write `new` [B, N, G, ...] into a note [B, G, S, ...] at `slots` [B, N]."""
        rows, groups = (jnp.arange(n) for n in note.shape[:2])
        at = rows[:, None, None], groups[None, :, None], slots[:, None]
        new = new.swapaxes(1, 2).astype(note.dtype)
        return note.at[at].set(new, mode="drop", unique_indices=True)


def make(
    store: Any,
    reader: Reader,
    size: int,
    heads: tuple[int, int],
    first: Array,
    queries: tuple[int, int],
    notes: dict[str, Any],
    extra: dict[str, Any],
    given: dict[str, Array],
    rows: tuple[Array, Array],
    softcap: float = 0.0,
) -> SparseLayer:
    """Make an empty layer.

    Args:
        store: an empty dense layer of `size` slots.
        reader: how it reads.
        size: slots.
        heads: (query heads per KV head, their dimension).
        first: int32[B]: the first token whose query is kept.
        queries: places for queries, while the prompt is read and afterwards.
        notes: name -> dtype (None: the store's) and the dimensions behind [B, G, S].
        extra: name -> dtype and the dimensions behind [B, G].
        given: name -> an array [B, G, ...]; B or G may be 1.
        rows: the budget and the tokens of the prompt, int32[B] both.
        softcap: bound of attention's scores; 0: none.
    """
    if reader.listed:
        places = min(reader.places, max(size // reader.unit, 1)) * reader.unit
        extra = {
            **extra,
            "index": (jnp.int32, (places,)),
            "chosen": (jnp.int32, ()),
            "since": (jnp.int32, ()),
        }
    kind = store.k.dtype
    notes = {name: (about[0] or kind, about[1]) for name, about in notes.items()}
    sizes = LayerSizes(size, size, *queries)
    about = (store, sizes, size, heads, first, notes, extra, rows)
    kept = layer(*about, softcap=softcap)
    fields = {name: getattr(kept, name) for name in kept.__dataclass_fields__}
    # A list [B, G, 0] of positions: slot t is token t.
    fields["pos"] = kept.pos[:, :, :0]
    rows = store.k.shape[:2]
    given = {
        name: jnp.broadcast_to(x, (*rows, *x.shape[2:])) for name, x in given.items()
    }
    return SparseLayer(**fields, given=given, reader=reader)


def _of(layer: SparseLayer) -> Any:
    return layer.notes.items()


def _newest(seen: Array) -> Array:
    """Return bool[B, N, S]: each node's newest slot, its own."""
    slots = jnp.arange(seen.shape[-1], dtype=jnp.int32)
    last = jnp.where(seen, slots, -1).max(-1, keepdims=True)
    return seen & (slots == last)


def _best(scores: Array, places: int, count: Array, unit: int) -> Chosen:
    """Select the `count` units of the highest scores, at most `places`."""
    best, index = lax.top_k(scores, min(places, scores.shape[-1]))
    order = jnp.arange(index.shape[-1], dtype=jnp.int32)
    is_chosen = (best > -jnp.inf) & (order < count[:, None, None, None])
    if unit == 1:
        return Chosen(index.astype(jnp.int32), is_chosen)
    slots = index[..., None] * unit + jnp.arange(unit, dtype=jnp.int32)
    whole = jnp.broadcast_to(is_chosen[..., None], slots.shape)
    flat = lambda x: x.reshape(*x.shape[:-2], -1)
    return Chosen(flat(slots).astype(jnp.int32), flat(whole))


def _attend(
    layer: SparseLayer, asked: Asked, chosen: Chosen, start: Array | None, cap: float
) -> Array:
    """Attend to the chosen slots, and to those from `start` int32[B] on."""
    seen, width = asked.seen, layer.reader.width if start is not None else 0
    nodes, size = seen.shape[1:]
    shared, places = chosen.index.shape[2], chosen.index.shape[3]
    if shared == 1 and places + width < size:
        slots, is_read = chosen.index[:, :, 0], chosen.is_chosen
        is_read = jnp.broadcast_to(is_read, (*slots.shape[:2], nodes, places))
        if start is not None:
            window = start[:, None] + jnp.arange(width, dtype=jnp.int32)
            new = jnp.take_along_axis(
                seen, window[:, None], axis=2, mode="fill", fill_value=False
            )
            new = jnp.broadcast_to(new[:, None], (*slots.shape[:2], nodes, width))
            window = jnp.broadcast_to(window[:, None], (*slots.shape[:2], width))
            slots = jnp.concatenate([slots, window], -1)
            is_read = jnp.concatenate([is_read, new], -1)
        k, v = layer.store.take(slots).read()
        return _softmax(asked.q, k, v, is_read, cap)
    batch, groups = chosen.index.shape[:2]
    at = (
        jnp.arange(batch)[:, None, None, None],
        jnp.arange(groups)[None, :, None, None],
        jnp.arange(shared)[None, None, :, None],
        chosen.index,
    )
    is_read = jnp.zeros((batch, groups, shared, size), bool)
    is_read = is_read.at[at].set(chosen.is_chosen, mode="drop", unique_indices=True)
    is_read = is_read & seen[:, None]
    if start is not None:
        new = jnp.arange(size, dtype=jnp.int32) >= start[:, None]
        is_read = is_read | (seen & new[:, None])[:, None]
    k, v = layer.read()
    return _softmax(asked.q, k, v, is_read, cap)


def _softmax(q: Array, k: Array, v: Array, is_read: Array, cap: float) -> Array:
    """Attend with q [B, N, G, R, d] to k, v [B, G, M, d] where bool[B, G, N, M]."""
    s = jnp.einsum("bngrd,bgmd->bgrnm", q, k, preferred_element_type=jnp.float32)
    if cap:
        s = jnp.tanh(s / cap) * cap
    s = jnp.where(is_read[:, :, None], s, NEGATIVE)
    p = jnp.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1)[..., None]
    out = jnp.einsum(
        "bgrnm,bgmd->bgrnd", p.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    return jnp.moveaxis((out / total).astype(q.dtype), 3, 1)


def asked_of(q: Array, mask: Array, seen: base.Visibility) -> Asked:
    """Return the nodes of a block, whose mask bool[B, N, S] is that of `seen`."""
    return Asked(q, mask, seen.prefix, seen.ancestors)


def axes() -> Any:
    """Return the axes of an `Asked` and of a carry; see `distributed.sharding`."""
    rows: Any = "batch"
    heads: Any = "batch kv_heads"
    q: Any = "batch - kv_heads heads -"
    return Asked(q, rows, rows, rows), Chosen(heads, heads)


def first_to_select(layers: tuple[Any, ...]) -> SparseLayer | None:
    """Return the first layer that selects for others within a call, if one does."""
    for one in layers:
        if isinstance(one, SparseLayer) and one.reads_few:
            if one.reader.role == SELECT and not one.reader.listed:
                return one
    return None


def reads_few(layers: tuple[Any, ...]) -> bool:
    """Return whether any of the layers reads few of its slots."""
    return any(isinstance(x, SparseLayer) and x.reads_few for x in layers)
