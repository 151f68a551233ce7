"""A folder of what a target says of windows of a text: manifest, shards, records.

`manifest.json` says what the cache is of, and `000000.array_record` and so on hold
`shard_rows` windows each. A shard gets its name when it is whole and on disk, so that a
killed run loses the one it was at. The files carry hashes of their records, which every
read checks; the tokens of a record are compared with those it is asked for.
"""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from array_record.python import array_record_module as array_record

from models import base
from models.distributed import processes
from models.errors import DataError
from training.teacher import outputs

DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}
SHARD = 2**28  # bytes of a shard, about, where `shard_rows` is 0
OPEN = 64  # shards that are read side by side
WRITING = "group_size:1,uncompressed"  # a record can be read without its neighbours
READING = "readahead_buffer_size:0,max_parallelism:0"
FAILURES = (OSError, RuntimeError)  # of files, and of the library that writes them
FREE = ("taps", "shard_rows")  # of the manifest: may differ from what is wanted


class Layout(NamedTuple):
    """What a record holds of a window."""

    length: int  # T
    width: int  # D
    masked: bool
    taps: tuple[base.Tap, ...]
    topk: int
    dtype: str

    @property
    def said(self) -> dict[str, jax.ShapeDtypeStruct]:
        """What the target says of one window: fields of a batch, without its rows."""
        shape, k = (self.length,), self.topk
        state = jax.ShapeDtypeStruct((*shape, self.width), DTYPES[self.dtype])
        found = {outputs.field(tap): state for tap in self.taps}
        if k:
            dtypes = (jnp.int32, jnp.float32, jnp.float32, jnp.float32)
            for name, dtype, ranks in zip(
                outputs.LIKELIEST, dtypes, ((k,), (k,), (), ())
            ):
                found[name] = jax.ShapeDtypeStruct((*shape, *ranks), dtype)
        return found

    @property
    def fields(self) -> dict[str, jax.ShapeDtypeStruct]:
        """All of a record, in its order."""
        text = {"tokens": jax.ShapeDtypeStruct((self.length,), jnp.int32)}
        if self.masked:
            text["loss_mask"] = jax.ShapeDtypeStruct((self.length,), jnp.bool_)
        return {**text, **self.said}

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return sum(x.size * x.dtype.itemsize for x in self.fields.values())

    def on_disk(self, rows: int) -> int:
        """Bytes of a shard of `rows` records, at most: hashes, index and padding."""
        return int(rows * (self.size + 96) * (1 + 1 / 2048)) + 3 * 2**16

    def pack(self, row: dict[str, np.ndarray]) -> bytes:
        """A record; raises `DataError` for arrays of another shape or dtype."""
        for name, x in self.fields.items():
            if row[name].shape != x.shape or row[name].dtype != x.dtype:
                raise DataError(
                    f"{name} is {row[name].dtype}{list(row[name].shape)}, a record "
                    f"holds {x.dtype}{list(x.shape)}"
                )
        return b"".join(row[name].tobytes() for name in self.fields)

    def unpack(self, record: bytes) -> dict[str, np.ndarray]:
        found, at = {}, 0
        for name, x in self.fields.items():
            flat = np.frombuffer(record, x.dtype, x.size, at)
            found[name], at = flat.reshape(x.shape), at + flat.nbytes
        return found


class Cache:
    """`rows` windows in shards: which are there, and what they hold.

    `about` says what a cache is of: two that say the same hold the same. Raises
    `DataError` where the folder's says something else; that it has more states than
    `kept` is no harm, and its `shard_rows` is kept.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        about: dict[str, Any],
        kept: Layout,
        rows: int,
        shard_rows: int = 0,
    ):
        self.folder = pathlib.Path(folder)
        shard_rows = shard_rows or max(1, min(rows, SHARD // kept.size))
        told = {**about, "taps": list(kept.taps), "shard_rows": shard_rows}
        self.about = self._agreed(told)
        self.layout = kept._replace(taps=tuple(self.about["taps"]))
        self.rows, self.shard_rows = rows, int(self.about["shard_rows"])
        self.shards = -(-rows // self.shard_rows)
        self._readers: dict[int, Any] = {}
        gone = np.array([not self._whole(i) for i in range(self.shards)])
        self.there = ~processes.either(gone)  # bool[shards]: on every process alike

    @property
    def manifest(self) -> pathlib.Path:
        return self.folder / "manifest.json"

    def _agreed(self, told: dict[str, Any]) -> dict[str, Any]:
        """What the manifest says, or will say."""
        if not self.manifest.exists():
            if any(self.folder.glob("*.array_record")):
                raise DataError(
                    f"{self.folder} has shards and no {self.manifest.name}: use "
                    "another features.directory"
                )
            return told
        try:
            found = dict(json.loads(self.manifest.read_text(encoding="utf-8")))
            taps = list(found["taps"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{self.manifest} is no manifest ({error}): delete {self.folder}"
            ) from error
        wrong = [
            f"{name}: {found.get(name)} there, {told[name]} here"
            for name in told
            if name not in FREE and found.get(name) != told[name]
        ]
        if not set(told["taps"]) <= set(taps):
            wrong.append(f"taps: {taps} there, {told['taps']} here")
        if wrong:
            raise DataError(
                f"{self.folder} is another cache ({'; '.join(wrong)}): name another "
                "features.directory, or delete this one"
            )
        return found

    def path(self, shard: int) -> pathlib.Path:
        return self.folder / f"{shard:06d}.array_record"

    def numbers(self, shard: int) -> range:
        """The windows of a shard."""
        first = shard * self.shard_rows
        return range(first, min(first + self.shard_rows, self.rows))

    def missing(self, numbers: Iterable[int] | None = None) -> np.ndarray:
        """bool[shards]: those that are not there, of `numbers` or of all."""
        gone = ~self.there
        if numbers is None:
            return gone
        asked = np.zeros_like(gone)
        asked[[n // self.shard_rows for n in numbers]] = True
        return gone & asked

    def bytes(self, shards: Iterable[int]) -> int:
        """What these shards take on disk, at most."""
        return sum(self.layout.on_disk(len(self.numbers(i))) for i in shards)

    def check(self) -> list[int]:
        """Read every record of every shard; those that are damaged are missing then."""
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
        """Whether a shard has all of its records, by its index."""
        return _records(self.path(shard)) >= len(self.numbers(shard))

    def _reader(self, shard: int) -> Any:
        if shard not in self._readers:
            if len(self._readers) >= OPEN:
                _close(self._readers.pop(next(iter(self._readers))))
            if not self._whole(shard):
                raise DataError(
                    f"{self.path(shard)} is not there, or not whole: the folder must "
                    "be one that every process sees; start again to make it"
                )
            reader = array_record.ArrayRecordReader(str(self.path(shard)), READING)
            self._readers[shard] = reader
        return self._readers[shard]

    def read(self, number: int, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """What the target said of window `number`, which has these tokens."""
        shard, at = divmod(number, self.shard_rows)
        try:
            record = self._reader(shard).read([at])[0]
        except FAILURES as error:
            raise DataError(
                f"{self.path(shard)} is damaged ({error}): delete it and start again, "
                "it alone is made anew"
            ) from error
        row = self.layout.unpack(record) if len(record) == self.layout.size else {}
        if not row or not np.array_equal(row["tokens"], tokens):
            raise DataError(
                f"{self.path(shard)}, record {at}: another text than window {number} "
                f"of the stream: delete {self.folder}"
            )
        return {name: row[name] for name in self.layout.said}

    def room(self, shards: Sequence[int]) -> None:
        """Raise `DataError` where the disk has no room for these shards."""
        wanted, free = self.bytes(shards), self.free()
        if wanted > free:
            raise DataError(
                f"{self.folder} needs {gb(wanted)} more, and its disk has {gb(free)} "
                "free: use teacher=online, which writes nothing, features.topk or "
                "bfloat16, fewer data.tokens, or another features.directory"
            )

    def free(self) -> int:
        """Bytes that the folder's disk has left."""
        known = self.folder.absolute()
        while not known.exists():
            known = known.parent
        return shutil.disk_usage(known).free

    def write(self, shard: int, rows: Iterable[dict[str, np.ndarray]]) -> None:
        """Write a shard; it has its name when all of it is on disk."""
        self._claim()
        with self._writing(self.path(shard)) as part:
            writer = array_record.ArrayRecordWriter(str(part), WRITING)
            try:
                for row in rows:
                    writer.write(self.layout.pack(row))
            finally:
                writer.close()
            if _records(part) != len(self.numbers(shard)):
                raise OSError("not all of it was written")
            with part.open("rb") as file:
                os.fsync(file.fileno())

    def made(self, shards: Iterable[int]) -> None:
        """Every process says so after all of these were written."""
        for shard in shards:
            if shard in self._readers:
                _close(self._readers.pop(shard))
            self.there[shard] = True

    def _claim(self) -> None:
        if not self.manifest.exists():
            with self._writing(self.manifest) as part:
                said = json.dumps(self.about, indent=1) + "\n"
                part.write_text(said, encoding="utf-8")

    @contextlib.contextmanager
    def _writing(self, path: pathlib.Path) -> Iterator[pathlib.Path]:
        """A file that gets its name at the end; what a kill left of one is removed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob(f".{path.name}.*"):
                old.unlink(missing_ok=True)
            part = self.folder / f".{path.name}.{os.getpid()}"
            try:
                yield part
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
        except FAILURES as error:
            raise DataError(
                f"{path} cannot be written ({error}): what is finished is kept; free "
                "space or name another features.directory, and start again"
            ) from error


def _records(path: pathlib.Path) -> int:
    """How many a file has by its index; -1 where there is no whole file."""
    if not path.exists():
        return -1
    reader = array_record.ArrayRecordReader(str(path), READING)
    found = reader.num_records() if reader.ok() else -1
    _close(reader)
    return int(found)


def _close(reader: Any) -> None:
    """The library says once more, when it closes a file, that it was damaged."""
    with contextlib.suppress(*FAILURES):
        reader.close()


def gb(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"
