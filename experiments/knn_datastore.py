"""Make a datastore of a model's states for `transforms/knn_lm`.

python -m experiments.knn_datastore --model=tiny --data=notes.txt --max_tokens=300000 \\
    --out=runs/knn_store

Data are files, or directories whose `--suffix` files are read; `.gz` files are
unpacked. `--fields=question,answer` reads JSON rows, `.json`, `.jsonl` or `.parquet`,
and joins these fields of each row. Every token of a text but the last gives an entry:
the input of the model's last feed-forward as the key, the next token as the value. The
model reads windows of `--window` tokens, of which the second half is kept, and of a
text's first window all: so a key has at least half a window before it, if the text has.

`decoding.text_lookup.key_store.load(out, lm)` loads it for `generate`. An entry takes
2 D + 4 bytes on disk, for states of width D, and 4 D + 8 in memory on a CPU.
"""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import models
from decoding.text_lookup import key_store
from experiments import console, datastore
from models import transformer
from models.base import FFN_INPUT
from models.errors import PromptError
from training import command_line

MODULE = "experiments.knn_datastore"
ROWS = 8  # windows in a call of the model


class Window(NamedTuple):
    """A part of a text, of which the tokens from `begin` on have entries."""

    tokens: Sequence[int]
    begin: int
    after: Sequence[int]  # the tokens that follow those from `begin` on


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", default="tiny", help="the model whose states are the keys")
    data = "file, directory or hf://...; repeatable"
    add("--data", action="append", default=[], help=data)
    suffix = "suffix of the files taken from a directory"
    add("--suffix", default=".txt", help=suffix)
    rows = "fields of JSON rows to join, with commas; none: plain text"
    add("--fields", type=lambda text: text.split(","), default=[], help=rows)
    most = "entries to make, from the beginning; 0: all"
    add("--max_tokens", type=int, default=300_000, help=most)
    window = "tokens that the model reads at once"
    add("--window", type=int, default=512, help=window)
    add("--out", default="runs/knn_store", help="output directory")
    return parser.read(arguments)


def taken(texts: Iterable[Sequence[int]], most: int) -> list[Sequence[int]]:
    """Take texts from the beginning, until they give `most` entries; 0: all."""
    count, chosen = 0, []
    for text in texts:
        part = text[: most - count + 1] if most else text
        chosen.append(part)
        count += max(len(part) - 1, 0)
        if most and count >= most:
            break
    return chosen


def windows(texts: Iterable[Sequence[int]], size: int) -> Iterator[Window]:
    """Cut texts into overlapping windows of `size` tokens at most, 2 or more.

    Each token of a text but its last has one entry.
    """
    before = size // 2
    for text in texts:
        start = 0
        while start == 0 or start + before < len(text) - 1:
            begin = before if start else 0
            after = text[start + begin + 1 : start + size + 1]
            if len(after):
                yield Window(text[start : start + size], begin, after)
            start += size - before


def entries(
    lm: Any, texts: Sequence[Sequence[int]], size: int = 512
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the keys float16[N, D] and the values int32[N] of texts.

    Args:
        lm: a transformer, as `models.load` returns it.
        texts: token lists.
        size: tokens of a window.
    """
    config = lm.model.config

    @jax.jit
    def states(params: Any, tokens: jax.Array) -> jax.Array:
        out = transformer.forward(config, params, tokens, taps=(FFN_INPUT,))
        return out.hidden[FFN_INPUT].astype(np.float16)

    total = sum(max(len(text) - 1, 0) for text in texts)
    keys = np.zeros((total, config.d_model), np.float16)
    values = np.zeros(total, np.int32)
    cut, end = windows(texts, size), 0
    with console.bar(total, "entries") as bar:
        while group := list(itertools.islice(cut, ROWS)):
            tokens = np.zeros((ROWS, size), np.int32)
            for row, window in zip(tokens, group):
                row[: len(window.tokens)] = window.tokens
            hidden = np.asarray(states(lm.params, tokens))
            for row, window in zip(hidden, group):
                start, end = end, end + len(window.after)
                keys[start:end] = row[window.begin :][: end - start]
                values[start:end] = window.after
            bar.reach(end)
    return keys, values


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Run the model over the data and write the datastore; return its meta.json."""
    if not options.data:
        raise PromptError("no data: give a text, e.g. --data=notes.txt")
    if options.max_tokens < 0:
        raise PromptError(f"--max_tokens={options.max_tokens}: use 0 (all) or more")
    lm = models.load(options.model)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={options.model} has no tokenizer.json: choose one that has"
        )
    if not 2 <= options.window <= lm.config.max_positions:
        raise PromptError(
            f"--window={options.window}: use 2 to {lm.config.max_positions}, the "
            "model's positions"
        )
    paths = datastore.files(options.data, options.suffix, "--data")
    texts = map(lm.tokenizer.encode, datastore.documents(paths, options.fields))
    keys, values = entries(lm, taken(texts, options.max_tokens), options.window)
    return key_store.save(options.out, lm, keys, values, options.model)


def body(arguments: list[str]) -> int:
    """Write the datastore of a command line."""
    options = read(arguments)
    about = make(options)
    console.terminal().print(f"{about['tokens']} entries in {options.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
