"""Documents from files of several kinds under one folder, split by their own hash.

No manifest and no split on disk is needed: a hash of its text assigns each document to
a split, so that training and evaluation agree on any copy of the data.
"""

import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from models import storage
from models.checkpoints import hub
from models.errors import DataError
from models.text import row_files

SPLITS = ("train", "validation")
SHORTEST = 64  # characters of a document


@dataclass(frozen=True)
class Part:
    """A group of a folder's files, and how they are cut into documents."""

    files: str  # a glob pattern under the folder; `.gz` files are unpacked
    # Fields of a JSON, JSONL or parquet row, joined by blank lines where they are not
    # empty; () for files of plain text.
    fields: tuple[str, ...] = ()
    between: str = ""  # a regular expression that separates a text's documents
    before: str = ""  # put before each document, such as the code of its class


def texts(
    folder: str | storage.Path, parts: Sequence[Part], split: str, held: float
) -> list[str]:
    """Return the documents of `split`; a share `held` of all is for validation.

    `folder` may be a data set, `hf://datasets/owner/name@revision`. Documents are in
    the order of the parts and of the files' names. Those with under 64
    characters, and repetitions of an earlier one, are left out; `before` counts for
    neither.

    Raises:
        DataError: a part has no file, a row lacks a field, or no document is left.
    """
    if split not in SPLITS:
        raise DataError(f"split={split!r}: use one of {SPLITS}")
    if not str(folder):
        raise DataError("data.source='': name the folder that holds the text")
    seen: set[bytes] = set()
    chosen = []
    for part in parts:
        for text in documents(folder, part):
            digest = hashlib.sha256(text.encode()).digest()
            if len(text) < SHORTEST or digest in seen:
                continue
            seen.add(digest)
            out = int.from_bytes(digest[:8], "big") < held * 2**64
            if out == (split == "validation"):
                chosen.append(part.before + text)
    if not chosen:
        raise DataError(
            f"{folder} gives no document for {split}: use another share than "
            f"held={held}, or more text"
        )
    return chosen


def documents(folder: str | os.PathLike, part: Part) -> Iterator[str]:
    """Yield the texts of one part, in the order of the files' names."""
    if hub.is_data(folder):
        paths = list(hub.data_files(f"{folder}/{part.files}"))
    else:
        found = storage.path(folder).glob(part.files)
        paths = sorted(p for p in found if p.is_file())
    if not paths:
        raise DataError(f"{folder} has no file {part.files!r}: see config.data.parts")
    for path in paths:
        for text in _rows(path, part.fields) if part.fields else (_read(path),):
            yield from re.split(part.between, text) if part.between else (text,)


def _read(path: storage.Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable UTF-8 file ({error})") from error


def _rows(path: storage.Path, fields: Sequence[str]) -> Iterator[str]:
    """Yield one text for each row of a JSON list, JSONL or parquet file."""
    try:
        if row_files.is_rows(path):
            rows = [json.loads(line) for _, line in row_files.lines(path)]
        else:
            rows = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    for number, row in enumerate(rows, 1):
        parts = [_field(row, name, f"{path}, row {number}") for name in fields]
        yield "\n\n".join(text for text in parts if text)


def _field(row: Any, name: str, where: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(name), str):
        raise DataError(f"{where}: no text under {name!r}")
    return row[name]
