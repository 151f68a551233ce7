"""A folder of a target's states on windows of a text: manifest, shards, records.

`manifest.json` names target, text and states. `000000.array_record` and so on hold
`shard_rows` windows each. A shard is renamed to its final name when it is complete on
disk, so that a killed run loses one shard. Every read checks the records' hashes, and
compares the tokens of a record with those of its window.
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from array_record.python import array_record_module as array_record

from models import base, storage
from models.distributed import processes
from models.errors import DataError
from training.teacher import outputs

DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}
SHARD = 2**28  # bytes of a shard, about, where `shard_rows` is 0
OPEN = 64  # shards that are read side by side
WRITING = "group_size:1,uncompressed"  # a record can be read without its neighbours
READING = "readahead_buffer_size:0,max_parallelism:0"
FAILURES = (OSError, RuntimeError)  # of files, and of the library that writes them
FREE = ("taps", "shard_rows")  # fields of the manifest that may differ


class Layout(NamedTuple):
    """The arrays that a record holds of a window."""

    length: int  # T
    width: int  # D
    masked: bool
    taps: tuple[base.Tap, ...]
    topk: int
    dtype: str

    @property
    def said(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of the target's outputs on one window, by batch key."""
        shape, k = (self.length,), self.topk
        state = jax.ShapeDtypeStruct((*shape, self.width), DTYPES[self.dtype])
        shapes = {outputs.field(tap): state for tap in self.taps}
        if k:
            dtypes = (jnp.int32, jnp.float32, jnp.float32, jnp.float32)
            for name, dtype, ranks in zip(
                outputs.LIKELIEST, dtypes, ((k,), (k,), (), ())
            ):
                shapes[name] = jax.ShapeDtypeStruct((*shape, *ranks), dtype)
        return shapes

    @property
    def fields(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of all of a record's arrays, in their order."""
        text = {"tokens": jax.ShapeDtypeStruct((self.length,), jnp.int32)}
        if self.masked:
            text["loss_mask"] = jax.ShapeDtypeStruct((self.length,), jnp.bool_)
        return {**text, **self.said}

    @property
    def size(self) -> int:
        """Count the bytes of a record."""
        return sum(x.size * x.dtype.itemsize for x in self.fields.values())

    def on_disk(self, rows: int) -> int:
        """Bound the bytes of a shard of `rows` records, index and padding included."""
        return int(rows * (self.size + 96) * (1 + 1 / 2048)) + 3 * 2**16

    def pack(self, row: dict[str, np.ndarray]) -> bytes:
        """Serialise a row; raise `DataError` for arrays of another shape or dtype."""
        for name, x in self.fields.items():
            if row[name].shape != x.shape or row[name].dtype != x.dtype:
                raise DataError(
                    f"{name} is {row[name].dtype}{list(row[name].shape)}, but a record "
                    f"holds {x.dtype}{list(x.shape)}: use a new features.directory"
                )
        return b"".join(row[name].tobytes() for name in self.fields)

    def unpack(self, record: bytes) -> dict[str, np.ndarray]:
        row, at = {}, 0
        for name, x in self.fields.items():
            flat = np.frombuffer(record, x.dtype, x.size, at)
            row[name], at = flat.reshape(x.shape), at + flat.nbytes
        return row


class Cache:
    """`rows` windows in shards: which shards are complete, and their records.

    Args:
        folder: where manifest and shards are.
        about: the manifest's fields that name target, tokenizer, text and dtype. Two
            caches with equal fields hold equal records.
        kept: the arrays of a record. The folder's may have more taps.
        rows: windows in all.
        shard_rows: windows a shard; 0: about 256 MiB. A folder's own value stays.

    Raises:
        DataError: the folder's manifest differs, or cannot be read.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        about: dict[str, Any],
        kept: Layout,
        rows: int,
        shard_rows: int = 0,
    ):
        self.folder = storage.path(folder)
        shard_rows = shard_rows or max(1, min(rows, SHARD // kept.size))
        manifest = {**about, "taps": list(kept.taps), "shard_rows": shard_rows}
        self.about = self._agreed(manifest)
        self.layout = kept._replace(taps=tuple(self.about["taps"]))
        self.rows, self.shard_rows = rows, int(self.about["shard_rows"])
        self.shards = -(-rows // self.shard_rows)
        self._readers: dict[int, _Reader] = {}
        missing = np.array([not self._whole(i) for i in range(self.shards)])
        self.there = ~processes.either(missing)  # bool[shards], equal on all processes

    @property
    def manifest(self) -> storage.Path:
        return self.folder / "manifest.json"

    def _agreed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the folder's manifest, or the given one where it has none yet."""
        if not self.manifest.exists():
            if any(self.folder.glob("*.array_record")):
                raise DataError(
                    f"{self.folder} has shards and no {self.manifest.name}: delete it, "
                    "or use another features.directory"
                )
            return manifest
        try:
            stored = dict(json.loads(self.manifest.read_text(encoding="utf-8")))
            taps = list(stored["taps"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{self.manifest} is no manifest ({error}): delete {self.folder} and "
                "start again"
            ) from error
        differences = [
            f"{name}: {stored.get(name)} there, {manifest[name]} here"
            for name in manifest
            if name not in FREE and stored.get(name) != manifest[name]
        ]
        if not set(manifest["taps"]) <= set(taps):
            differences.append(f"taps: {taps} there, {manifest['taps']} here")
        if differences:
            raise DataError(
                f"{self.folder} is another cache ({'; '.join(differences)}): use "
                "another features.directory, or delete this one"
            )
        return stored

    def path(self, shard: int) -> storage.Path:
        return self.folder / f"{shard:06d}.array_record"

    def numbers(self, shard: int) -> range:
        """Return the numbers of a shard's windows."""
        first = shard * self.shard_rows
        return range(first, min(first + self.shard_rows, self.rows))

    def missing(self, numbers: Iterable[int] | None = None) -> np.ndarray:
        """Mark bool[shards] the missing shards, of the windows `numbers` or of all."""
        absent = ~self.there
        if numbers is None:
            return absent
        needed = np.zeros_like(absent)
        needed[[n // self.shard_rows for n in numbers]] = True
        return absent & needed

    def bytes(self, shards: Iterable[int]) -> int:
        """Bound the bytes that these shards take on disk."""
        return sum(self.layout.on_disk(len(self.numbers(i))) for i in shards)

    def check(self) -> list[int]:
        """Read every record of every shard; mark and return the damaged shards."""
        bad = np.zeros_like(self.there)
        for shard in np.flatnonzero(self.there):
            try:
                reader = self._reader(int(shard))
                for i in range(len(self.numbers(int(shard)))):
                    reader.read([i])
            except (DataError, *FAILURES):
                bad[shard] = True
        bad = processes.either(bad)
        self.there &= ~bad
        return [int(i) for i in np.flatnonzero(bad)]

    def _whole(self, shard: int) -> bool:
        """Check by its index whether a shard has all of its records.

        An object of a bucket is not read for it: it is there whole or not at all.
        """
        path = self.path(shard)
        if not isinstance(path, pathlib.Path):
            return path.exists()
        return _records(path) >= len(self.numbers(shard))

    def _reader(self, shard: int) -> Any:
        if shard not in self._readers:
            if len(self._readers) >= OPEN:
                self._readers.pop(next(iter(self._readers))).close()
            if not self._whole(shard):
                raise DataError(
                    f"{self.path(shard)} is missing or incomplete: use a folder that "
                    "every process sees, and start again to write it"
                )
            self._readers[shard] = _Reader(self.path(shard))
        return self._readers[shard].records

    def read(self, number: int, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Read the target's outputs on window `number`, by batch key.

        Raises `DataError` for a damaged shard, or where the record's tokens are not
        `tokens` int32[T].
        """
        shard, at = divmod(number, self.shard_rows)
        try:
            record = self._reader(shard).read([at])[0]
        except FAILURES as error:
            raise DataError(
                f"{self.path(shard)} is damaged ({error}): delete it and start again; "
                "only this shard is rebuilt"
            ) from error
        row = self.layout.unpack(record) if len(record) == self.layout.size else {}
        if not row or not np.array_equal(row["tokens"], tokens):
            raise DataError(
                f"{self.path(shard)}, record {at}: another text than window {number} "
                f"of the stream: delete {self.folder} and start again"
            )
        return {name: row[name] for name in self.layout.said}

    def room(self, shards: Sequence[int]) -> None:
        """Raise `DataError` where the disk has too little space for these shards."""
        needed, free = self.bytes(shards), self.free()
        if needed > free:
            raise DataError(
                f"{self.folder} needs {gb(needed)} more, and its disk has {gb(free)} "
                "free: use teacher=online, which writes nothing, features.topk or "
                "bfloat16, fewer data.tokens, or another features.directory"
            )

    def free(self) -> int:
        """Count the free bytes of the folder's disk; a bucket has no end."""
        if not isinstance(self.folder, pathlib.Path):
            return 1 << 62
        folder = self.folder.absolute()
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    def write(self, shard: int, rows: Iterable[dict[str, np.ndarray]]) -> None:
        """Write a shard, and name it when all of it is on disk."""
        self._claim()
        with self._writing(self.path(shard)) as part:
            writer = array_record.ArrayRecordWriter(str(part), WRITING)
            try:
                for row in rows:
                    writer.write(self.layout.pack(row))
            finally:
                writer.close()
            if _records(part) != len(self.numbers(shard)):
                raise OSError("not all records were written")
            with part.open("rb") as file:
                os.fsync(file.fileno())

    def made(self, shards: Iterable[int]) -> None:
        """Mark shards as complete; every process calls it after they were written."""
        for shard in shards:
            if shard in self._readers:
                self._readers.pop(shard).close()
            self.there[shard] = True

    def _claim(self) -> None:
        if not self.manifest.exists():
            with self._writing(self.manifest) as part:
                text = json.dumps(self.about, indent=1) + "\n"
                part.write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def _writing(self, path: storage.Path) -> Iterator[pathlib.Path]:
        """Yield a temporary file that becomes `path` at the end.

        Of a killed run's temporary files those of the same name are removed.
        """
        try:
            for old in storage.leftovers(path):
                old.unlink(missing_ok=True)
            with storage.new_file(path) as part:
                yield part
        except FAILURES as error:
            raise DataError(
                f"{path} cannot be written ({error}): finished shards are kept; free "
                "space or use another features.directory, and start again"
            ) from error


def _records(path: pathlib.Path) -> int:
    """Count a file's records by its index; -1 where there is no complete file."""
    if not path.exists():
        return -1
    reader = array_record.ArrayRecordReader(str(path), READING)
    count = reader.num_records() if reader.ok() else -1
    _close(reader)
    return int(count)


class _Reader:
    """An open shard; one of a bucket is read from a copy on this machine's disk."""

    def __init__(self, path: storage.Path):
        self._copy: tempfile.TemporaryDirectory | None = None
        if not isinstance(path, pathlib.Path):
            self._copy = tempfile.TemporaryDirectory(prefix="decodax-features-")
            copy = pathlib.Path(self._copy.name, path.name)
            storage.download(path, copy)
            path = copy
        self.records = array_record.ArrayRecordReader(str(path), READING)

    def close(self) -> None:
        _close(self.records)
        if self._copy is not None:
            self._copy.cleanup()


def _close(reader: Any) -> None:
    """Close a reader; a damaged file's error was raised when it was read."""
    with contextlib.suppress(*FAILURES):
        reader.close()


def gb(count: float) -> str:
    """Format a count of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"
