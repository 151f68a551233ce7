"""Rows of a cache as named arrays, to be written to a file, and back.

`pack` takes the slots in use of one row. `unpack` places them in a row of another cache
of the same layout, whose arrays may be longer. Both work on the host. A layout that is
not listed here, and a row that does not fit, raise `Misfit`, whose text is the reason.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from models.cache_layouts.gear import Blocks, GearLayer
from models.cache_layouts.held import HeldLayer
from models.cache_layouts.kept import KeptLayer, Queries
from models.cache_layouts.kv_cache import DenseLayer, KVCache
from models.cache_layouts.paired import PairedLayer
from models.cache_layouts.quantized import GROUP, QuantizedLayer
from models.cache_layouts.residual_codes import Codes
from models.cache_layouts.sparse import SparseLayer

Arrays = dict[str, np.ndarray]
KEYS, VALUES = "k", "v"  # names of a layer's exact keys and values [G, M, d]


class Misfit(Exception):
    """Why a row cannot be stored, or a stored one cannot be placed."""


def pack(cache: KVCache, row: int) -> Arrays:
    """Return row `row` as arrays, those of layer i named `layers.i.<name>`.

    Raises:
        Misfit: the layout cannot be stored.
    """
    length = int(cache.length[row])
    arrays = {
        "length": np.int32(length),
        "pos": np.asarray(cache.pos[row, :length]),
    }
    for i, layer in enumerate(cache.layers):
        named = pack_layer(layer, row, length)
        arrays |= {f"layers.{i}.{name}": x for name, x in named.items()}
    return {name: np.asarray(x) for name, x in arrays.items()}


def unpack(cache: KVCache, row: int, arrays: Arrays) -> KVCache:
    """Return a cache of one row, of the shapes of `cache`, that holds `arrays`.

    Args:
        cache: a cache before its prompts are read.
        row: what the row of the prompt has beside its slots is taken from this one.
        arrays: as `pack` returns them.

    Raises:
        Misfit: another layout, or more slots than the cache has.
    """
    length = int(arrays["length"])
    layers = []
    for i, layer in enumerate(cache.layers):
        start = f"layers.{i}."
        named = {n[len(start) :]: x for n, x in arrays.items() if n.startswith(start)}
        try:
            layers.append(unpack_layer(layer, row, named, length))
        except KeyError as missing:
            raise Misfit(
                f"layer {i} is a {type(layer).__name__} and the stored one has no "
                f"{missing}: another layout"
            ) from None
    if any(name.startswith(f"layers.{len(layers)}.") for name in arrays):
        raise Misfit(f"{len(layers)} layers, and the stored row has more")
    pos = fitted(arrays["pos"], cache.pos, "positions", -1)
    return KVCache(tuple(layers), pos, np.full(1, length, np.int32))  # type: ignore[arg-type]


def evicted(cache: KVCache, row: int) -> bool:
    """Return whether a layer of the row has given up slots by a policy's choice."""
    return any(
        isinstance(layer, KeptLayer) and int(layer.shift[row]) > 0
        for layer in cache.layers
    )


def layout(cache: KVCache) -> list[str]:
    """Name the layers' layouts, with the dtype of what they store first."""
    return [
        f"{type(x).__name__} {jax.tree.leaves(x)[0].dtype} {getattr(x, 'window', '')}"
        for x in cache.layers
    ]


def fitted(values: Any, like: Any, what: str, empty: Any = 0) -> Any:
    """Return `values` [...] in an array [1, ...] with the other dimensions of `like`.

    Raises:
        Misfit: another number of dimensions, another dtype, or a longer one.
    """
    values, shape = np.asarray(values), like.shape[1:]
    fits = values.ndim == len(shape) and all(map(int.__le__, values.shape, shape))
    if not fits or values.dtype != like.dtype:
        raise Misfit(
            f"{what}: the stored row has {values.dtype.name}{list(values.shape)}, this "
            f"call a place of {like.dtype.name}{list(shape)}"
        )
    whole = np.full((1, *shape), empty, like.dtype)
    place: Any = tuple(slice(size) for size in values.shape)
    whole[(0, *place)] = values
    return whole


@functools.singledispatch
def pack_layer(layer: Any, row: int, length: int) -> Arrays:
    """Return the arrays of a layer's row that has seen `length` tokens."""
    raise Misfit(f"rows of the layout {type(layer).__name__} cannot be stored")


@functools.singledispatch
def unpack_layer(layer: Any, row: int, arrays: Arrays, length: int) -> Any:
    """Return a layer of one row of the shapes of `layer`, NumPy arrays in it."""
    raise Misfit(f"rows of the layout {type(layer).__name__} cannot be loaded")


@pack_layer.register
def _(layer: DenseLayer, row: int, length: int) -> Arrays:
    take = lambda x: np.asarray(x[row, :, :length])
    return {KEYS: take(layer.k), VALUES: take(layer.v)}


@unpack_layer.register
def _(layer: DenseLayer, row: int, arrays: Arrays, length: int) -> Any:
    if set(arrays) != {KEYS, VALUES}:
        extra = sorted(set(arrays) - {KEYS, VALUES})
        raise Misfit(
            f"this call keeps every slot of a layer whose stored row has {extra}, so "
            "it holds a window or what a policy kept: store it for texts of this length"
        )
    k = fitted(arrays[KEYS], layer.k, "keys")
    v = fitted(arrays[VALUES], layer.v, "values")
    return replace(layer, k=k, v=v)


@pack_layer.register
def _(layer: HeldLayer, row: int, length: int) -> Arrays:
    shift = int(layer.shift[row])
    slots = pack_layer(layer.store, row, length - shift)
    return {**slots, "shift": np.asarray(shift, np.int32)}


@unpack_layer.register
def _(layer: HeldLayer, row: int, arrays: Arrays, length: int) -> Any:
    slots = {name: arrays[name] for name in (KEYS, VALUES)}
    shift: Any = np.full(1, arrays["shift"], np.int32)
    store = unpack_layer(layer.store, row, slots, length)
    return replace(layer, store=store, shift=shift)


@pack_layer.register
def _(layer: KeptLayer, row: int, length: int) -> Arrays:
    used = length - int(layer.shift[row])
    arrays = {
        **pack_layer(layer.store, row, used),
        "shift": np.asarray(layer.shift[row]),
        "budget": np.asarray(layer.budget[row]),
        "slot": np.asarray(layer.pos[row, :, :used]),
    }
    for name, x in layer.notes.items():
        arrays[f"notes.{name}"] = np.asarray(x[row, :, :used])
    for name, x in layer.extra.items():
        arrays[f"extra.{name}"] = np.asarray(x[row])
    if layer.bias is not None:
        arrays["bias"] = np.asarray(layer.bias[row, :, :used])
    if layer.queries is not None:
        arrays["queries.q"] = np.asarray(layer.queries.q[row])
        arrays["queries.pos"] = np.asarray(layer.queries.pos[row])
        arrays["queries.first"] = np.asarray(layer.queries.first[row])
        if layer.queries.sinks is not None:
            arrays["queries.sinks"] = np.asarray(layer.queries.sinks[row])
    return arrays


@pack_layer.register
def _(layer: PairedLayer, row: int, length: int) -> Arrays:
    raise Misfit("rows of layers that share directions cannot be stored")


@unpack_layer.register
def _(layer: KeptLayer, row: int, arrays: Arrays, length: int) -> Any:
    own = ("shift", "budget", "slot", "notes.", "extra.", "bias", "queries.")
    slots = {name: x for name, x in arrays.items() if not name.startswith(own)}
    shift: Any = np.full(1, arrays["shift"], np.int32)
    here: Any = (np.asarray(x[row : row + 1]) for x in (layer.budget, layer.prompt))
    budget, prompt = here
    if shift[0] and budget[0] != arrays["budget"]:
        raise Misfit(
            f"slots were evicted under a budget of {arrays['budget']}, and this "
            f"prompt's is {budget[0]}"
        )
    notes = {
        name: fitted(arrays[f"notes.{name}"], x, name)
        for name, x in layer.notes.items()
    }
    extra = {
        name: fitted(arrays[f"extra.{name}"], x, name)
        for name, x in layer.extra.items()
    }
    bias: Any = layer.bias
    if bias is not None:
        bias = fitted(arrays["bias"], bias, "bias")
    queries = layer.queries
    if (queries is not None) != ("queries.q" in arrays):
        raise Misfit("one of the rows holds queries, the other does not")
    if queries is not None:
        queries = _queries(queries, row, arrays)
    return replace(
        layer,
        store=unpack_layer(layer.store, row, slots, length),
        shift=shift,
        pos=fitted(arrays["slot"], layer.pos, "tokens of slots", -1),
        notes=notes,
        extra=extra,
        queries=queries,
        budget=budget,
        prompt=prompt,
        bias=bias,
    )


@unpack_layer.register
def _(layer: SparseLayer, row: int, arrays: Arrays, length: int) -> Any:
    kept = unpack_layer.dispatch(KeptLayer)(layer, row, arrays, length)
    own = jax.tree.map(lambda x: np.asarray(x[row : row + 1]), layer.given)
    return replace(kept, given=own)


def _queries(queries: Queries, row: int, arrays: Arrays) -> Any:
    """Place stored queries in the places that this prompt has for them.

    A rule that reads the prompt's last queries alone keeps them from a token on that
    the prompt's length decides; one that has evicted, from the last eviction on.
    """
    stored, tokens = arrays["queries.q"], arrays["queries.pos"]
    first = max(int(queries.first[row]), int(arrays["queries.first"]))
    places = queries.pos.shape[1]
    taken = np.flatnonzero(tokens >= first)
    at = tokens[taken] - first
    if (at >= places).any() or stored.shape[1:] != queries.q.shape[2:]:
        raise Misfit(f"{len(taken)} stored queries, and {places} places for them")
    q = np.zeros((1, *queries.q.shape[1:]), queries.q.dtype)
    pos = np.full((1, places), -1, np.int32)
    q[0, at], pos[0, at] = stored[taken], tokens[taken]
    sinks = queries.sinks
    if sinks is not None:
        sinks = fitted(arrays["queries.sinks"], sinks, "sinks")
    return Queries(q, pos, np.full(1, first, np.int32), sinks)  # type: ignore[arg-type]


@pack_layer.register
def _(layer: QuantizedLayer, row: int, length: int) -> Arrays:
    old, recent = layer.old, layer.recent
    whole = -(-length // GROUP) * GROUP  # slots of the groups that have a token
    arrays = {"old.channel": old.channel[row]}
    for name in ("k", "v", "k_scale", "v_scale"):
        codes = getattr(old, name)  # two slots may share a byte
        arrays[f"old.{name}"] = codes[row, :, : codes.shape[2] * whole // layer.size]
    arrays |= {f"recent.{name}": x[row] for name, x in recent._asdict().items()}
    return {name: np.asarray(x) for name, x in arrays.items()}


@unpack_layer.register
def _(layer: QuantizedLayer, row: int, arrays: Arrays, length: int) -> Any:
    parts: dict[str, Any] = {}
    for part in ("old", "recent"):
        like = getattr(layer, part)
        named = {
            name: fitted(arrays[f"{part}.{name}"], x, name)
            for name, x in like._asdict().items()
        }
        parts[part] = type(like)(**named)
    return replace(layer, **parts)


@pack_layer.register
def _(layer: GearLayer, row: int, length: int) -> Arrays:
    whole = -(-length // layer.block)  # blocks that have a token
    arrays = {
        f"old.{part}.{name}": x[row, :, :whole]
        for part in ("k", "v")
        for name, x in getattr(layer.old, part)._asdict().items()
    }
    arrays |= {f"recent.{name}": x[row] for name, x in layer.recent._asdict().items()}
    return {name: np.asarray(x) for name, x in arrays.items()}


@unpack_layer.register
def _(layer: GearLayer, row: int, arrays: Arrays, length: int) -> Any:
    place = lambda name, x: fitted(arrays[name], x, name)
    old = {
        part: Codes(
            **{
                name: place(f"old.{part}.{name}", x)
                for name, x in getattr(layer.old, part)._asdict().items()
            }
        )
        for part in ("k", "v")
    }
    recent = {
        name: place(f"recent.{name}", x) for name, x in layer.recent._asdict().items()
    }
    return replace(layer, old=Blocks(**old), recent=type(layer.recent)(**recent))
