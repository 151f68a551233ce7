"""Calibrated frequencies of a model's lanes, and the file that holds them.

A table is counted over prefixes of texts like those to come. A chunk's own table would
take 0.8 to 1.9 bits a value beside codes of 2.5 to 3.9 bits: one table for a model is
shared by all its chunks and stored once.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from decoding.serving import prefix_files
from decoding.serving.cachegen import codec, rans
from models import storage
from models.cache_layouts.stored import Arrays
from models.errors import MethodError

FILE = "calibration"
COMMAND = "python -m experiments.prefixes calibrate --folder=FOLDER --data=FILE"


def counted(
    rows: Iterable[Arrays], levels: Sequence[str], deltas: bool = False
) -> dict[str, codec.Tables]:
    """Count the symbols of raw rows, and make the tables of each level.

    Raises:
        MethodError: no rows, or rows without exact keys.
    """
    counts: dict[str, list] = {level: [] for level in levels}
    for arrays in rows:
        for level in levels:
            lanes = codec.lanes_of(arrays, level)
            if not lanes:
                raise MethodError("this cache holds no exact keys and values to count")
            if not counts[level]:
                counts[level] = [_empty(x, bins, deltas) for _, x, bins in lanes]
            for (first, second), (_, symbols, bins) in zip(counts[level], lanes):
                size = 2 * codec.top(bins) + 1
                parts = codec.split(symbols, size) if deltas else (symbols,)
                for into, part in zip((first, second), parts):
                    lane = np.arange(len(part))[:, None] * into.shape[1]
                    flat = np.bincount((lane + part).ravel(), minlength=into.size)
                    into += flat.reshape(into.shape)
    if not all(counts.values()):
        raise MethodError("no text to calibrate on: give files of at least a chunk")
    return {level: _tables(level, found, deltas) for level, found in counts.items()}


def _empty(symbols: np.ndarray, bins: int, deltas: bool) -> tuple:
    size = 2 * codec.top(bins) + 1
    second = np.zeros((len(symbols), 2 * size - 1), np.int64) if deltas else None
    return np.zeros((len(symbols), size), np.int64), second


def _tables(level: str, counts: list[tuple], deltas: bool) -> codec.Tables:
    def frequencies(which: int) -> np.ndarray:
        parts = [pair[which] for pair in counts]
        widest = max(part.shape[1] for part in parts)
        made = []
        for part in parts:
            sizes = np.full(len(part), part.shape[1])
            table = rans.normalised(part, sizes)
            made.append(np.pad(table, ((0, 0), (0, widest - table.shape[1]))))
        return np.stack(made)

    sizes = np.asarray([first.shape[1] for first, _ in counts], np.int32)
    further = frequencies(1) if deltas else None
    return codec.Tables(level, deltas, sizes, frequencies(0), further)


def path(folder: storage.Path) -> storage.Path:
    """Return the place of the tables of a folder's store."""
    return folder / f"{FILE}.tables"


def save(file: storage.Path, tables: dict[str, codec.Tables], weights: str) -> None:
    """Write the tables of all levels of the model whose weights have a digest."""
    arrays = {}
    for level, table in tables.items():
        arrays[f"{level}.sizes"] = table.sizes
        arrays[f"{level}.frequencies"] = table.frequencies.astype(np.uint16)
        if table.further is not None:
            arrays[f"{level}.further"] = table.further.astype(np.uint16)
    about = {"weights": weights, "levels": sorted(tables)}
    prefix_files.write(file, prefix_files.Content(about, arrays))


def load(file: storage.Path, level: str, weights: str) -> codec.Tables:
    """Read the tables of one level.

    Raises:
        MethodError: no file, a damaged one, or one of another model or level.
    """
    remedy = f"write tables of this model by `{COMMAND}`"
    try:
        about, arrays = prefix_files.read(file)
    except FileNotFoundError:
        raise MethodError(f"{file} is missing: {remedy}") from None
    except prefix_files.Damaged as reason:
        raise MethodError(f"{file}: {reason}: {remedy}") from None
    if about.get("weights") != weights:
        raise MethodError(f"{file} is of other weights: {remedy}")
    if level not in about["levels"]:
        raise MethodError(f"{file} has the levels {about['levels']}, not {level!r}")
    further = arrays.get(f"{level}.further")
    return codec.Tables(
        level,
        further is not None,
        arrays[f"{level}.sizes"],
        arrays[f"{level}.frequencies"].astype(np.uint32),
        None if further is None else further.astype(np.uint32),
    )


def digest(tables: codec.Tables) -> str:
    """Return a digest of what decides the codes."""
    parts: list[Any] = [tables.sizes, tables.frequencies, tables.further]
    blocks = [np.ascontiguousarray(x).tobytes() for x in parts if x is not None]
    return hashlib.blake2b(b"".join(blocks), digest_size=16).hexdigest()
