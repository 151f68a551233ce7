"""CacheGen: a cache's keys and values in few bits, for files and networks.

Yuhan Liu et al., *CacheGen: KV Cache Compression and Streaming for Fast Large Language
Model Serving*, SIGCOMM 2024, arXiv 2310.07240, section 5.

For each layer, token and kind (keys or values), with max the largest magnitude of its
channels and bins of a level, C = bins / 2 - 1:

    symbol = round(x C / max) + C  in  [0, 2 C],    |x - x^| <= max / (2 C)

Each (layer, channel) is a lane with frequencies of its own, coded by `rans`.

Deviations: the frequencies are calibrated once for a model (`tables`), where the
official code stores a table with every chunk. Maxima have 16 bits and are rounded up,
so that the bound holds for what is stored. Coding deltas to one anchor in ten tokens is
the paper's and a flag here: the official code leaves it out. A middle third of layers
stands for layers 10 to 19 of 32, and so on.

Cost: on the host, in proportion to the tokens; see `rans`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding.serving.cachegen import rans
from models.cache_layouts.stored import KEYS, VALUES, Arrays
from models.errors import MethodError

RAW = "raw"
GROUP = 10  # tokens of which the first is the others' anchor
KINDS = (KEYS, VALUES)
PLACE = re.compile(r"^(caches\.target\.layers\.(\d+)\.)([kv])$")


class Level(NamedTuple):
    """Bins of the thirds of layers: of keys; of values, of the first and the others."""

    keys: tuple[int, int, int]
    values: tuple[int, int]

    def bins(self, kind: str, layer: int, layers: int) -> int:
        """Return the bins of a layer's keys or values; depths scale to 32 layers."""
        depth = 32 * layer / layers
        if kind == KEYS:
            return self.keys[(depth >= 10) + (depth >= 20)]
        return self.values[depth >= 2]


LEVELS = {
    "3": Level((32, 32, 32), (32, 32)),
    "2": Level((32, 16, 16), (32, 16)),
    "1": Level((16, 16, 12), (12, 12)),
}


class Symbols(NamedTuple):
    """The symbols of the lanes of one layer and kind, and the maxima of its tokens."""

    values: np.ndarray  # uint8[channels, n]
    ratios: np.ndarray  # float16[n]: a token's maximum / `largest`
    largest: np.ndarray  # float32[]


class Tables(NamedTuple):
    """The frequencies of a model's lanes at one level."""

    level: str
    deltas: bool
    sizes: np.ndarray  # int32[2 layers]: symbols of keys and values, layer by layer
    frequencies: np.ndarray  # uint32[2 layers, channels, A]: of anchors, or of all
    further: np.ndarray | None  # uint32[2 layers, channels, A']: of deltas


def top(bins: int) -> int:
    """Return C, half of the highest symbol.

    Raises:
        MethodError: bins of which a symbol or a delta would not fit 8 bits.
    """
    if not 4 <= bins <= 128:
        raise MethodError(f"bins={bins}: use 4 to 128")
    return bins // 2 - 1


def quantised(x: np.ndarray, bins: int) -> Symbols:
    """Quantise `x` [G, n, d] by token; a token of zeros has the middle symbols."""
    c = top(bins)
    x = np.asarray(x, np.float32)
    lanes = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    most = np.abs(lanes).max(0, initial=0.0)
    largest = np.float32(most.max(initial=0.0))
    ratios = (most / largest if largest > 0 else most).astype(np.float16)
    low = ratios.astype(np.float32) * largest < most
    ratios = np.where(low, np.nextafter(ratios, np.float16(np.inf)), ratios)
    scale = ratios.astype(np.float32) * largest
    unit = np.where(scale > 0, lanes / np.where(scale > 0, scale, 1), 0)
    symbols = np.clip(np.rint(unit * c), -c, c) + c
    return Symbols(symbols.astype(np.uint8), ratios, np.asarray(largest))


def restored(symbols: Symbols, bins: int, groups: int) -> np.ndarray:
    """Return the values float32[G, n, d] that symbols stand for."""
    c = top(bins)
    scale = symbols.ratios.astype(np.float32) * symbols.largest
    lanes = (symbols.values.astype(np.float32) - c) * (scale / c)
    lanes = lanes.reshape(groups, -1, lanes.shape[1])
    return np.ascontiguousarray(np.moveaxis(lanes, -1, 1))


def split(symbols: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the anchors' symbols, and the others' deltas plus size - 1."""
    at = np.arange(symbols.shape[1])
    rest = at[at % GROUP > 0]
    base = symbols[:, rest // GROUP * GROUP].astype(np.int16)
    deltas = symbols[:, rest] - base + size - 1
    return symbols[:, ::GROUP], deltas.astype(np.uint8)


def joined(anchors: np.ndarray, deltas: np.ndarray, size: int) -> np.ndarray:
    """Return the symbols that `split` took apart."""
    count = anchors.shape[1] + deltas.shape[1]
    at = np.arange(count)
    rest = at[at % GROUP > 0]
    symbols = np.zeros((len(anchors), count), np.uint8)
    symbols[:, ::GROUP] = anchors
    base = symbols[:, rest // GROUP * GROUP].astype(np.int16)
    symbols[:, rest] = base + deltas - (size - 1)
    return symbols


def compressed(arrays: Arrays, tables: Tables) -> tuple[Arrays, dict[str, Any]]:
    """Replace the exact keys and values of a row's target cache by codes.

    Layers of the same number of slots are coded together.

    Args:
        arrays: of a `prefix_rows.Row`.
        tables: of the model.

    Returns:
        The arrays, and what `decompressed` needs to know, as JSON.

    Raises:
        MethodError: no exact keys, or tables of another model.
    """
    rest = dict(arrays)
    groups: dict[int, list[tuple[str, int]]] = {}
    for name, place in _places(arrays, tables):
        groups.setdefault(arrays[name].shape[1], []).append((name, place))
    about = []
    for number, (count, members) in enumerate(sorted(groups.items())):
        parts = [quantised(arrays[name], _bins(tables, at)) for name, at in members]
        for (name, _), part in zip(members, parts):
            rest[f"{name}.ratios"], rest[f"{name}.largest"] = part[1:]
        lanes = [part.values for part in parts]
        for kind, block, table in _blocks(lanes, [at for _, at in members], tables):
            words, states = rans.encode(block, table)
            rest[f"coded.{number}.{kind}.words"] = words
            rest[f"coded.{number}.{kind}.states"] = states
        shapes = [[n, str(arrays[n].dtype), arrays[n].shape[0]] for n, _ in members]
        about.append({"count": count, "members": shapes})
        for name, _ in members:
            del rest[name]
    return rest, {"level": tables.level, "groups": about}


def decompressed(arrays: Arrays, about: Mapping[str, Any], tables: Tables) -> Arrays:
    """Return a row's arrays from those of `compressed`; ValueError for broken codes."""
    rest = {name: x for name, x in arrays.items() if not name.startswith("coded.")}
    for number, group in enumerate(about["groups"]):
        count, members = group["count"], group["members"]
        places = [_place(name, tables) for name, _, _ in members]
        channels = tables.frequencies.shape[1]
        parts = []
        sizes = {"all": count} if not tables.deltas else _counts(count)
        for kind, size in sizes.items():
            start = f"coded.{number}.{kind}."
            coded = rans.Coded(arrays[f"{start}words"], arrays[f"{start}states"])
            table = _table(tables, places, kind)
            parts.append(rans.decode(coded, table, size).reshape(-1, channels, size))
        for i, (name, dtype, heads) in enumerate(members):
            size = int(tables.sizes[places[i]])
            lanes = [part[i] for part in parts]
            values = joined(lanes[0], lanes[1], size) if tables.deltas else lanes[0]
            scales = rest.pop(f"{name}.ratios"), rest.pop(f"{name}.largest")
            whole = restored(Symbols(values, *scales), size + 1, heads)
            rest[name] = whole.astype(jnp.dtype(dtype))
    return rest


def bits(arrays: Arrays) -> int:
    """Count the bits of what `compressed` put in the place of keys and values."""
    ends = (".ratios", ".largest")
    names = [n for n in arrays if n.startswith("coded.") or n.endswith(ends)]
    return sum(8 * arrays[name].nbytes for name in names)


def lanes_of(arrays: Arrays, level: str) -> list[tuple[int, np.ndarray, int]]:
    """Return the lanes of a raw row for a calibration.

    Returns:
        Place (2 layer + 1 for values), symbols uint8[channels, n], and bins, of each
        layer and kind.
    """
    found = [PLACE.match(name) for name in arrays]
    places = [match for match in found if match]
    layers = 1 + max((int(match[2]) for match in places), default=-1)
    lanes = []
    for match in places:
        layer, kind = int(match[2]), match[3]
        bins = LEVELS[level].bins(kind, layer, layers)
        symbols = quantised(arrays[match[0]], bins).values
        lanes.append((2 * layer + KINDS.index(kind), symbols, bins))
    return sorted(lanes, key=lambda lane: lane[0])


def _places(arrays: Arrays, tables: Tables) -> list[tuple[str, int]]:
    names = sorted(name for name in arrays if PLACE.match(name))
    if not names:
        raise MethodError(
            "this cache holds no exact keys and values: store its rows at the level raw"
        )
    channels = {arrays[n].shape[0] * arrays[n].shape[2] for n in names}
    places = [_place(name, tables) for name in names]
    if channels != {tables.frequencies.shape[1]} or max(places) >= len(tables.sizes):
        raise MethodError("the tables are of another model: calibrate them anew")
    return list(zip(names, places))


def _place(name: str, tables: Tables) -> int:
    match = PLACE.match(name)
    if match is None:
        raise ValueError(f"{name!r} is no place of keys or values")
    return 2 * int(match[2]) + KINDS.index(match[3])


def _bins(tables: Tables, place: int) -> int:
    return int(tables.sizes[place]) + 1  # symbols 0 .. 2 C, C = bins / 2 - 1


def _table(tables: Tables, places: list[int], kind: str) -> np.ndarray:
    table = tables.further if kind == "deltas" else tables.frequencies
    assert table is not None
    return table[places].reshape(-1, table.shape[-1])


def _blocks(lanes: list[np.ndarray], places: list[int], tables: Tables):
    """Yield the kind, the symbols of all lanes, and their table, of what is coded."""
    if not tables.deltas:
        yield "all", np.concatenate(lanes), _table(tables, places, "all")
        return
    halves = [split(x, int(tables.sizes[at])) for x, at in zip(lanes, places)]
    for i, kind in enumerate(_counts(0)):
        block = np.concatenate([half[i] for half in halves])
        yield kind, block, _table(tables, places, kind)


def _counts(count: int) -> dict[str, int]:
    anchors = -(-count // GROUP)
    return {"anchors": anchors, "deltas": count - anchors}
