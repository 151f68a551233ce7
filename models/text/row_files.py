"""Rows of JSONL and parquet files, on disk or in a data set of the hub."""

import gzip
import json
import os
from collections.abc import Iterator
from typing import Any

from models import storage
from models.checkpoints import hub
from models.errors import DataError

JSONL, PARQUET = ".jsonl", ".parquet"


def is_rows(path: storage.Path) -> bool:
    """Return whether a file holds rows by its name: JSONL (also in .gz) or parquet."""
    return path.name.removesuffix(".gz").endswith(JSONL) or path.suffix == PARQUET


def paths(source: str | os.PathLike) -> tuple[storage.Path, ...]:
    """Return the path of a file, or those of an address `hf://...`, downloaded."""
    if isinstance(source, str) and hub.is_data(source):
        return hub.data_files(source)
    return (storage.path(source),)


def lines(source: str | os.PathLike) -> Iterator[tuple[str, str]]:
    """Yield the rows of a file or an address, each as its place and a line of JSON.

    Blank lines are left out. A row of parquet becomes a JSON object without the columns
    that are null in it. Files of other names are read as JSONL.

    Raises:
        DataError: a file cannot be read.
    """
    for path in paths(source):
        yield from _parquet(path) if path.suffix == PARQUET else _jsonl(path)


def _jsonl(path: storage.Path) -> Iterator[tuple[str, str]]:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with (
            storage.local_copy(path) as copy,
            opened(copy, "rt", encoding="utf-8") as file,
        ):
            # Not splitlines: JSON strings may hold U+2028 and its like.
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}, line {number}", line.removesuffix("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable UTF-8 file ({error})") from error


def _parquet(path: storage.Path) -> Iterator[tuple[str, str]]:
    import pyarrow  # slow to import (seconds), and only needed here
    import pyarrow.parquet

    number = 0
    try:
        with (
            storage.local_copy(path) as copy,
            pyarrow.parquet.ParquetFile(copy) as file,
        ):
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    row = {name: x for name, x in row.items() if x is not None}
                    line = json.dumps(row, ensure_ascii=False, default=_text)
                    yield f"{path}, row {number}", line
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path}: not a readable parquet file ({error}): copy it again"
        ) from error


def _text(value: Any) -> str:
    """Convert a value that JSON has no form of: bytes as UTF-8, dates by `str`."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
