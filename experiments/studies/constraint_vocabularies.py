"""Byte-level vocabularies of several sizes, trained once a run folder."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import models
from experiments import run_folder
from experiments.run_folder import RunFolder
from models import storage
from models.errors import ConfigError, DataError
from models.text import row_files
from training.data import train_bpe

OWN = 0  # the size that stands for the model's own vocabulary


class Trained(NamedTuple):
    """A tokenizer.json on the disk."""

    size: int
    file: str
    eos: tuple[int, ...]


def strings(value: Any) -> Iterator[str]:
    """Yield the texts inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def texts(folder: str, patterns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of files: JSONL's, a JSON's, or plain text by lines; also .gz.

    Raises:
        DataError: a pattern matches no file.
    """
    for pattern in patterns:
        files = sorted(storage.path(folder).glob(pattern))
        if not files:
            raise DataError(
                f"{folder} has no {pattern}: set config.text and config.texts"
            )
        for file in files:
            rows = (line for _, line in row_files.lines(file))
            name = file.name.removesuffix(".gz")
            if name.endswith(".jsonl"):
                for row in rows:
                    yield from strings(json.loads(row))
            elif name.endswith(".json"):
                yield from strings(json.loads("\n".join(rows)))
            else:
                yield from (row + "\n" for row in rows)


def made(config: Any, store: RunFolder, size: int) -> Trained:
    """Train a vocabulary, or take the one that the run folder holds.

    Args:
        config: `model`, `data`, `text` ("": the folder above `data`) and `texts`.
        store: the run folder.
        size: tokens; `OWN`: the model's vocabulary.
    """
    file = store.path / "vocabularies" / f"{size}.tokenizer.json"

    def make() -> dict[str, Any]:
        started = time.monotonic()
        if size == OWN:
            lm: Any = models.load(config.model)
            text, eos = lm.tokenizer.inner.to_str(), list(lm.model.config.eos)
            count = lm.model.config.vocab_size
        else:
            folder = config.text or str(storage.path(config.data).parent)
            if not config.data and not config.text:
                raise ConfigError("config.text is empty: give a folder of texts")
            trained = train_bpe.train(texts(folder, config.texts), size)
            text, eos, count = trained.to_str(), [0], size
        run_folder.text(file, text)
        return {"size": count, "eos": eos, "seconds": time.monotonic() - started}

    row = store.make("vocabularies", str(size), make)
    return Trained(row["size"], str(file), tuple(row["eos"]))
