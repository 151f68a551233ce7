"""Safetensors on disk: lazy reads tensor by tensor, and streamed writes.

The format is 8 bytes of header length, a JSON header (`name -> dtype, shape,
data_offsets`) and the raw data. This module reads it through a memory map instead of
the `safetensors` package: every name, shape and offset is checked against the file
before a weight is read, and saving never holds more than one tensor.
"""

import json
import math
import pathlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from models import storage
from models.errors import CheckpointError

DTYPES: dict[str, Any] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F64": np.dtype(np.float64),
    "U8": np.dtype(np.uint8),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4 << 30


class Stored(NamedTuple):
    """One tensor in a file."""

    file: storage.Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte offset in the file

    def read(self) -> np.ndarray:
        """Map the tensor from the file in its stored dtype; pages are read on use.

        From a bucket its range of the file is read.
        """
        dtype = DTYPES[self.dtype]
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        if isinstance(self.file, pathlib.Path):
            return np.memmap(self.file, dtype, "r", self.start, self.shape)
        with self.file.open("rb") as file:
            file.seek(self.start)
            raw = file.read(math.prod(self.shape) * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(self.shape)


class Group(NamedTuple):
    """The tensors of one param; `make` builds them when they are written."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any
    make: Callable[[], Sequence[np.ndarray]]


def read_json(path: storage.Path) -> dict:
    """Read the object in a JSON file; CheckpointError if it is missing or broken."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: a model directory needs config.json and "
            "model.safetensors (or its index and shards)"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}): restore the file"
        ) from None
    if not isinstance(data, dict):
        raise CheckpointError(
            f"{path} holds a {type(data).__name__}, not an object: restore the file"
        )
    return data


def scan(directory: storage.Path) -> dict[str, Stored]:
    """List every tensor of a model directory by name; only headers are read."""
    if (directory / INDEX).exists() and not (directory / SINGLE).exists():
        weights = read_json(directory / INDEX).get("weight_map")
        if not isinstance(weights, dict):
            raise CheckpointError(f"{directory / INDEX} has no weight_map: restore it")
        shards = sorted(set(weights.values()))
        absent = [name for name in shards if not (directory / name).is_file()]
        if absent:
            raise CheckpointError(
                f"{directory} lacks shards that its index names: {absent}; copy them"
            )
        stored = {}
        for name in shards:
            stored.update(_header(directory / name))
        lost = sorted(set(weights) - set(stored))
        if lost:
            raise CheckpointError(
                f"{directory / INDEX} names tensors that no shard holds: {lost}; copy "
                "the index and the shards again"
            )
        return stored
    if (directory / SINGLE).is_file():
        return _header(directory / SINGLE)
    pickled = sorted(p.name for p in directory.glob("*.bin"))
    pickled += sorted(p.name for p in directory.glob("*.pt*"))
    if pickled:
        raise CheckpointError(
            f"{directory} has only pickled weights ({pickled}), which can run code "
            "when read: convert them to safetensors (save_pretrained of transformers "
            "writes it)"
        )
    raise CheckpointError(
        f"{directory} has no weights: expected {SINGLE} or {INDEX} with its shards"
    )


def _header(path: storage.Path) -> dict[str, Stored]:
    size = storage.size(path)
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if 8 + length > size:
            raise CheckpointError(
                f"{path} is truncated: {size} bytes do not hold its header; copy it "
                "again"
            )
        raw = file.read(length)
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        parsed = [
            (name, entry["dtype"], tuple(map(int, entry["shape"])), begin, end)
            for name, entry in entries.items()
            for begin, end in [map(int, entry["data_offsets"])]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} is not a safetensors file: its header cannot be read; copy it "
            "again"
        ) from None
    out, short, wrong, alien = {}, [], [], []
    for name, dtype, shape, begin, end in parsed:
        if 8 + length + end > size:
            short.append(name)
        elif dtype not in DTYPES:
            alien.append(f"{name} ({dtype})")
        elif end - begin != math.prod(shape) * DTYPES[dtype].itemsize or begin < 0:
            wrong.append(name)
        out[name] = Stored(path, dtype, shape, 8 + length + begin)
    if short:
        raise CheckpointError(
            f"{path} is truncated: {size} bytes end before {short}; copy it again"
        )
    if wrong:
        raise CheckpointError(
            f"{path}: offsets disagree with the shapes of {wrong}; copy it again"
        )
    if alien:
        raise CheckpointError(
            f"{path}: tensors of unsupported types {alien}: use weights in one of "
            f"{sorted(DTYPES)} (dequantise them first)"
        )
    return out


def write(
    directory: storage.Path, groups: Sequence[Group], shard_bytes: int = SHARD_BYTES
) -> None:
    """Write `groups` as one file, or as shards of about `shard_bytes` and an index.

    Each file appears whole, so that an interrupted save never leaves a truncated file
    under a good name; shards of an earlier save are removed last.
    """
    shards: list[list[Group]] = [[]]
    room = shard_bytes
    for group in groups:
        size = sum(map(math.prod, group.shapes)) * np.dtype(group.dtype).itemsize
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(group)
        room -= size
    if len(shards) == 1:
        names = [SINGLE]
    else:
        count = len(shards)
        names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    total = 0
    for name, shard in zip(names, shards):
        total += _write_file(directory / name, shard)
    if len(shards) > 1:
        weights = {t: n for n, s in zip(names, shards) for g in s for t in g.names}
        index = {"metadata": {"total_size": total}, "weight_map": weights}
        write_json(directory / INDEX, index)
        names.append(INDEX)
    for old in [*directory.glob("model*.safetensors"), directory / INDEX]:
        if old.name not in names:
            old.unlink(missing_ok=True)


def _write_file(path: storage.Path, groups: Sequence[Group]) -> int:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for group in groups:
        dtype = np.dtype(group.dtype)
        for name, shape in zip(group.names, group.shapes):
            end = offset + math.prod(shape) * dtype.itemsize
            header[name] = {
                "dtype": NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, end],
            }
            offset = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # data starts at a multiple of 8
    with storage.new_file(path) as part, part.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for group in groups:
            for array in group.make():
                contiguous = np.ascontiguousarray(array)
                file.write(contiguous.view(np.uint8).reshape(-1).data)
    return offset


def write_json(path: storage.Path, data: dict) -> None:
    """Write an object as indented UTF-8 JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    storage.write(path, text)
