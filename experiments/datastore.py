"""Make a datastore of text for `drafters/rest`.

python -m experiments.datastore --model=tiny --text=notes.txt --out=runs/datastore

Texts are files, or directories whose `--suffix` files are read; `.gz` files are
unpacked. `--fields=question,answer` reads JSON rows, `.json` or `.jsonl`, and joins
these fields of each row. The suffix array sorts in memory, in about 60 bytes a token.
"""

import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags

import models
from decoding.text_lookup import suffix_array
from experiments import console
from models.errors import DecodaxError, PromptError
from training.data import file_groups


def define(values: flags.FlagValues) -> None:
    """Define the command's flags."""
    text = "file or directory; repeatable"
    flags.DEFINE_string(
        "model", "tiny", "the model whose tokenizer is used", flag_values=values
    )
    flags.DEFINE_multi_string("text", [], text, flag_values=values)
    flags.DEFINE_string(
        "suffix",
        ".txt",
        "suffix of the files taken from a directory",
        flag_values=values,
    )
    rows = "fields of JSON rows to join; none: plain text"
    flags.DEFINE_list("fields", [], rows, flag_values=values)
    most = "tokens to take, from the beginning; 0: all"
    flags.DEFINE_integer("most", 0, most, flag_values=values)
    flags.DEFINE_string("out", "runs/datastore", "output directory", flag_values=values)


def files(paths: Sequence[str], suffix: str) -> Iterator[pathlib.Path]:
    """Yield every text file of `paths`, in a fixed order."""
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise PromptError(f"--text={path} does not exist")
        candidates = path.rglob(f"*{suffix}") if path.is_dir() else [path]
        yield from sorted(p for p in candidates if p.is_file())


def taken(tokenizer: Any, values: flags.FlagValues) -> Iterator[list[int]]:
    """Yield the tokens of every text, `--most` of them in all."""
    count = 0
    for path in files(values.text, values.suffix):
        part = file_groups.Part(path.name, tuple(values.fields))
        for text in file_groups.documents(path.parent, part):
            tokens = tokenizer.encode(text, add_special=False)
            if values.most:
                tokens = tokens[: values.most - count]
            if tokens:
                yield tokens
            count += len(tokens) + 1  # the separator
            if values.most and count >= values.most:
                return


def make(values: flags.FlagValues) -> suffix_array.Datastore:
    """Encode the texts, sort them into a datastore and write it."""
    if not values.text:
        raise PromptError("no text: give one, e.g. --text=notes.txt")
    lm = models.load(values.model)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={values.model} has no tokenizer.json: choose one that has"
        )
    store = suffix_array.build(taken(lm.tokenizer, values))
    suffix_array.save(store, values.out)
    return store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    values = flags.FlagValues()
    define(values)
    out = console.terminal()
    if "--help" in arguments:
        out.print(f"{__doc__}{values}", markup=False, highlight=False)
        return 0
    try:
        try:
            stray = values(["datastore", *arguments])[1:]
        except flags.Error as error:
            raise PromptError(str(error)) from error
        if stray:
            raise PromptError(f"stray arguments {stray}: give files as --text=FILE")
        store = make(values)
    except DecodaxError as error:
        console.complain(error)
        return 2
    out.print(f"{len(store.tokens)} tokens in {values.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
