"""Sources of documents: TFDS, files, folders, the hub; and their held-out share."""

import hashlib
import json
import os
from typing import Any

from models import storage
from models.checkpoints import hub
from models.errors import DataError
from models.text import row_files
from training import progress_lines
from training.data.file_groups import SPLITS

EVERY = "every"  # split: all documents
HELD = 0.05  # share of a file's lines, for validation


def tfds_texts(
    name: str, split: str, data_dir: str | os.PathLike, key: str = "text"
) -> list[str]:
    """Read the texts of a split of a TFDS data set, in the data set's order.

    `stdlib_code`, and its parts `stdlib_code/code` and `stdlib_code/docstrings`, are
    built here; any other name goes to `tfds.builder`. Data are stored as array_record
    and read without TensorFlow. Raises `DataError` for an unknown name, split or
    feature.
    """
    import tensorflow_datasets as tfds  # slow to import, and only needed here

    if storage.remote(storage.path(data_dir)):
        raise DataError(
            f"data.directory={os.fspath(data_dir)!r}: TFDS's records are read from a "
            "disk: name a local folder, or a source of JSONL files, in a bucket or not"
        )

    try:
        base, _, part = name.partition("/")
        if base == "stdlib_code":
            from training.data.stdlib_code import CONFIGS, WHOLE, StdlibCode

            if (part or WHOLE) not in CONFIGS:
                known = sorted(CONFIGS.keys() - {WHOLE})
                raise DataError(f"stdlib_code has no part {part!r}: use one of {known}")
            builder: Any = StdlibCode(
                config=CONFIGS[part or WHOLE],
                data_dir=data_dir,
                file_format="array_record",
            )
        else:
            builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except (tfds.core.DatasetNotFoundError, ModuleNotFoundError) as error:
        raise DataError(f"no TFDS data set named {name!r}: {error}") from error
    if not builder.info.splits:
        with progress_lines.Lines(lambda: f"preparing {name}") as lines:
            if lines.wanted:
                tfds.disable_progress_bar()
            builder.download_and_prepare()
    if split not in builder.info.splits:
        known = sorted(builder.info.splits)
        raise DataError(f"{name} has no split {split!r}: use one of {known}")
    if key not in builder.info.features:
        known = sorted(builder.info.features)
        raise DataError(f"{name} has no feature {key!r}: use one of {known}")
    return [_text(row[key]) for row in builder.as_data_source(split)]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def lines(path: str | os.PathLike, split: str = EVERY) -> list[tuple[str, str]]:
    """Return the rows of a file that are of `split`, each as its place and its JSON.

    A hash of a line decides whether it is held out for "validation": one in twenty of
    many, at least one of few, and the same lines in any copy of the file. Raises
    `DataError` for another split, and where no line is left for it.
    """
    placed = list(row_files.lines(path))
    if split == EVERY:
        return placed
    if split not in SPLITS:
        raise DataError(f"{path} has no split {split!r}: use one of {SPLITS}")
    digests = [hashlib.sha256(line.encode()).digest()[:8] for _, line in placed]
    share = max([round(HELD * 2**64).to_bytes(8, "big"), *sorted(digests)[:1]])
    chosen = [
        line
        for line, digest in zip(placed, digests)
        if (digest <= share) == (split == "validation")
    ]
    if not chosen:
        raise DataError(
            f"{path}: of {len(placed)} lines none is left for {split}: give more "
            "lines, or a folder with train/ and validation/"
        )
    return chosen


def row_texts(
    path: str | os.PathLike, key: str = "text", split: str = EVERY
) -> list[str]:
    """Read one document a row; raise `DataError` naming the row that has no text."""
    texts = []
    for where, line in lines(path, split):
        try:
            text = json.loads(line)[key]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(
                f"{where}: no JSON object with {key!r} ({error}): mend or delete it"
            ) from error
        if not isinstance(text, str):
            raise DataError(
                f"{where}: {key!r} is no string but {type(text).__name__}: mend or "
                "delete it"
            )
        texts.append(text)
    return texts


def files(folder: str | os.PathLike, split: str) -> list[storage.Path]:
    """List the files of a split of a folder, sorted; all files for "every"."""
    root = storage.path(folder)
    root = root if split == EVERY else root / split
    paths = storage.files(root)
    if not paths:
        raise DataError(f"{root}: no files: put some there, or name another source")
    return paths


def file_text(path: str | os.PathLike) -> str:
    """Read a UTF-8 file; raise `DataError` where it is not readable."""
    try:
        return storage.path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable UTF-8 file ({error})") from error


def parts(source: str, split: str) -> list[tuple[storage.Path, str]]:
    """List the files of a split of a source, and the split to take of their rows.

    A folder `d` gives the files of `d/<split>`, whole; a file, or those that match an
    address `hf://datasets/owner/name@revision/path`, are split by their rows.
    """
    if not hub.is_data(source) and storage.path(source).is_dir():
        return [(path, EVERY) for path in files(source, split)]
    return [(path, split) for path in row_files.paths(source)]


def texts(source: str, split: str, data_dir: str | os.PathLike) -> list[str]:
    """Read the documents of a source: `tfds:<name>`, a file, a folder, or the hub's.

    JSONL and parquet files hold a document a row; of a single one, or the hub's, a
    split is a part of the rows (`parts`). Another file is one document. The split
    "every" takes all documents, also a single file of text.
    """
    if source.startswith("tfds:"):
        return tfds_texts(source.removeprefix("tfds:"), split, data_dir)
    documents = []
    for path, rows in parts(source, split):
        if row_files.is_rows(path):
            documents += row_texts(path, split=rows)
            continue
        documents.append(file_text(path))
        if rows != EVERY:
            raise DataError(
                f"{path}: of one text nothing can be held out: give a .jsonl or "
                ".parquet file, or a folder with train/ and validation/"
            )
    return documents
