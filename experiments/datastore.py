"""Make a datastore of text for `drafters/rest`.

python -m experiments.datastore --model=tiny --text=notes.txt --out=runs/datastore

Texts are files, or directories whose `--suffix` files are read; `.gz` files are
unpacked. `--fields=question,answer` reads JSON rows, `.json` or `.jsonl`, and joins
these fields of each row. The suffix array sorts in memory, in about 60 bytes a token.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import models
from decoding.text_lookup import suffix_array
from experiments import console
from models import storage
from models.checkpoints import hub
from models.errors import PromptError
from training import command_line
from training.data import file_groups

MODULE = "experiments.datastore"


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", default="tiny", help="the model whose tokenizer is used")
    text = "file, directory or hf://...; repeatable"
    add("--text", action="append", default=[], help=text)
    suffix = "suffix of the files taken from a directory"
    add("--suffix", default=".txt", help=suffix)
    rows = "fields of JSON rows to join, with commas; none: plain text"
    add("--fields", type=lambda text: text.split(","), default=[], help=rows)
    most = "tokens to take, from the beginning; 0: all"
    add("--most", type=int, default=0, help=most)
    add("--out", default="runs/datastore", help="output directory")
    return parser.read(arguments)


def files(
    paths: Sequence[str], suffix: str, flag: str = "--text"
) -> Iterator[storage.Path]:
    """Yield every text file of `paths`, which `flag` gave, in a fixed order."""
    for source in paths:
        if hub.is_data(source):
            yield from hub.data_files(source)
            continue
        path = storage.path(source)
        if not path.exists():
            raise PromptError(f"{flag}={path} does not exist")
        candidates = storage.files(path) if path.is_dir() else [path]
        yield from (p for p in candidates if p == path or p.name.endswith(suffix))


def documents(paths: Iterable[storage.Path], fields: Sequence[str]) -> Iterator[str]:
    """Yield the texts of files: their rows' `fields`, or each file as a whole."""
    for path in paths:
        part = file_groups.Part(path.name, tuple(fields))
        yield from file_groups.documents(path.parent, part)


def taken(tokenizer: Any, options: argparse.Namespace) -> Iterator[list[int]]:
    """Yield the tokens of every text, `--most` of them in all."""
    count = 0
    for text in documents(files(options.text, options.suffix), options.fields):
        tokens = tokenizer.encode(text, add_special=False)
        if options.most:
            tokens = tokens[: options.most - count]
        if tokens:
            yield tokens
        count += len(tokens) + 1  # the separator
        if options.most and count >= options.most:
            return


def make(options: argparse.Namespace) -> suffix_array.Datastore:
    """Encode the texts, sort them into a datastore and write it."""
    if not options.text:
        raise PromptError("no text: give one, e.g. --text=notes.txt")
    lm = models.load(options.model)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={options.model} has no tokenizer.json: choose one that has"
        )
    store = suffix_array.build(taken(lm.tokenizer, options))
    suffix_array.save(store, options.out)
    return store


def body(arguments: list[str]) -> int:
    """Write the datastore of a command line."""
    options = read(arguments)
    store = make(options)
    console.terminal().print(f"{len(store.tokens)} tokens in {options.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
