"""Files of stored prefixes: safetensors with a JSON header and a checksum of all bytes.

A file gets its name when it is complete and on the disk. Reading raises `Damaged` for
every file that is not what was written, whatever byte differs: the checksum covers the
header, too.
"""

import hashlib
import json
import math
import os
import struct
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from models import storage

SUFFIX = ".safetensors"
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
EMPTY = "0" * 64  # in the checksum's place while it is computed


class Damaged(Exception):
    """Why a file cannot be trusted."""


class Content(NamedTuple):
    """What a file holds."""

    about: dict[str, Any]  # JSON
    arrays: dict[str, np.ndarray]


def write(file: storage.Path, content: Content) -> int:
    """Write a file under its name, whole or not at all; return its bytes."""
    data = encoded(content)
    with storage.new_file(file) as part, part.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return len(data)


def encoded(content: Content) -> bytes:
    """Return the bytes of a file."""
    header: dict[str, Any] = {}
    blocks, offset = [], 0
    for name, array in sorted(content.arrays.items()):
        block = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(block)],
        }
        blocks.append(block)
        offset += len(block)
    about = json.dumps(content.about, sort_keys=True)
    header["__metadata__"] = {"checksum": EMPTY, "about": about}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    checksum = _digest(raw, *blocks).encode()
    raw = raw.replace(EMPTY.encode(), checksum, 1)
    return b"".join([struct.pack("<Q", len(raw)), raw, *blocks])


def read(file: storage.Path, check: bool = True) -> Content:
    """Read a file.

    Args:
        file: its path.
        check: compare the checksum.

    Raises:
        Damaged: the file is torn, altered or no file of this kind.
        OSError: it cannot be read.
    """
    return decoded(file.read_bytes(), check)


def decoded(data: bytes, check: bool = True) -> Content:
    """Read the bytes of a file; see `read`."""
    raw, header = _header(data)
    start = 8 + len(raw)
    try:
        about = header.pop("__metadata__")
        checksum = about["checksum"]
        blank = raw.replace(checksum.encode(), EMPTY.encode(), 1)
        whole = _digest(blank, memoryview(data)[start:])
        if check and whole != checksum:
            raise Damaged("the checksum differs: bytes were changed or are missing")
        arrays = {n: _array(data, start, entry) for n, entry in header.items()}
        return Content(json.loads(about["about"]), arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the header is none of a stored prefix ({error})") from None


def about(file: storage.Path) -> dict[str, Any]:
    """Read what a file says of itself, without its arrays; nothing is checked.

    Raises:
        Damaged: there is no readable header.
    """
    with file.open("rb") as source:
        head = source.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        raw = source.read(min(length, storage.size(file)))
    _, header = _header(head + raw)
    try:
        return json.loads(header["__metadata__"]["about"])
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"the header is none of a stored prefix ({error})") from None


def _header(data: bytes) -> tuple[bytes, dict[str, Any]]:
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else len(data)
    if 8 + length > len(data):
        raise Damaged(f"{len(data)} bytes end before the header does: the file is torn")
    raw = data[8 : 8 + length]
    try:
        header = json.loads(raw)
    except ValueError:
        raise Damaged("the header is no JSON: no safetensors file") from None
    if not isinstance(header, dict):
        raise Damaged("the header is no object: no safetensors file")
    return raw, header


def _array(data: bytes, start: int, entry: dict[str, Any]) -> np.ndarray:
    dtype, shape = DTYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    begin, end = map(int, entry["data_offsets"])
    if end - begin != math.prod(shape) * dtype.itemsize or start + end > len(data):
        raise Damaged("an array's place is not in the file: it is torn")
    return np.frombuffer(data, dtype, math.prod(shape), start + begin).reshape(shape)


def _digest(*blocks: bytes | memoryview) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()
