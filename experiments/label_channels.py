"""Order a model's key channels for `caches/double_sparsity`, by importance.

python -m experiments.label_channels --model=tiny --data=notes.txt \\
    --out=runs/channels.json

The importance of a channel is the mean of |q|, |k| or |q k| over the tokens (`--by`),
the sum over the query heads of its KV head. Data are files, or directories whose
`--suffix` files are read; `.gz` files are unpacked. The paper reads 256 windows of 512
tokens.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding.cache_reading import label_channels
from experiments import console, datastore
from models.errors import PromptError
from models.transformer.layer import Layer
from models.transformer.modules import Embedding, rotations
from training import command_line

MODULE = "experiments.label_channels"
BY = ("q", "k", "qk")


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", default="tiny", help="the model whose channels are ordered")
    data = "file, directory or hf://...; repeatable"
    add("--data", action="append", default=[], help=data)
    suffix = "suffix of the files taken from a directory"
    add("--suffix", default=".txt", help=suffix)
    rows = "fields of JSON rows to join, with commas; none: plain text"
    add("--fields", type=lambda text: text.split(","), default=[], help=rows)
    add("--windows", type=int, default=256, help="windows to read")
    add("--window", type=int, default=512, help="tokens of a window")
    add("--by", default="q", choices=BY, help="of what a channel's mean is taken")
    add("--out", default="runs/channels.json", help="output file")
    return parser.read(arguments)


def windows(texts: Iterable[Sequence[int]], size: int, most: int) -> np.ndarray:
    """Cut the joined texts into windows: int32[M, size], at most `most` of them."""
    joined: list[int] = []
    for text in texts:
        joined += text
        if len(joined) >= size * most:
            break
    count = min(len(joined) // size, most)
    return np.asarray(joined[: count * size], np.int32).reshape(count, size)


def importance(lm: Any, tokens: np.ndarray, by: str = "q") -> np.ndarray:
    """Return the importance of every channel, float64[L, G, d].

    Args:
        lm: a transformer, as `models.load` returns it.
        tokens: int32[M, T], windows.
        by: "q", "k" or "qk": the mean of |q|, |k| or of |q k| of the same token.
    """
    config = lm.model.config
    embedding: Any = Embedding(config)

    @jax.jit
    def of_window(params: Any, ids: jax.Array) -> jax.Array:
        at = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
        x = embedding.apply({"params": params["embedding"]}, ids, at, method="embed")
        spun, past = rotations(config, at, ids.shape[1]), at[0][:, None] - at[0]
        sums = []
        for i in range(config.n_layers):
            layer: Any = Layer(config, config.layer(i))
            own = {"params": params[f"layer_{i}"]}
            rotation = spun[config.rope(i)]
            q, k, _ = layer.apply(own, x, rotation, method="project")
            q, k = abs(q.astype(jnp.float32)), abs(k.astype(jnp.float32))
            each = {"q": q, "k": k[:, :, :, None], "qk": q * k[:, :, :, None]}[by]
            sums.append(each.mean((0, 1)).sum(1))
            mask = (past >= 0) & (past < (config.window(i) or ids.shape[1]))
            x = layer.apply(own, x, mask[None], rotation, None)
        return jnp.stack(sums)

    found = np.zeros((config.n_layers, config.n_kv_heads, config.head_dim))
    with console.bar(len(tokens), "windows") as bar:
        for count, row in enumerate(tokens, 1):
            found += np.asarray(of_window(lm.params, row[None]), np.float64)
            bar.reach(count)
    return found / len(tokens)


def make(options: argparse.Namespace) -> int:
    """Write the channels' order of a command line; return the windows read.

    Raises:
        PromptError: no data, too little of it, or a model that cannot be measured.
    """
    if not options.data:
        raise PromptError("no data: give a text, e.g. --data=notes.txt")
    if options.windows < 1 or options.window < 1:
        raise PromptError(
            f"--windows={options.windows} of --window={options.window} tokens: use at "
            "least 1"
        )
    lm = models.load(options.model)
    if lm.tokenizer is None or getattr(lm.config, "position", "") == "alibi":
        raise PromptError(
            f"--model={options.model}: choose a transformer without ALiBi that has a "
            "tokenizer.json"
        )
    paths = datastore.files(options.data, options.suffix, "--data")
    texts = map(lm.tokenizer.encode, datastore.documents(paths, options.fields))
    tokens = windows(texts, options.window, options.windows)
    if not len(tokens):
        raise PromptError(
            f"the data have less than --window={options.window} tokens: give more"
        )
    found = importance(lm, tokens, options.by)
    order = np.argsort(-found, axis=-1, kind="stable")
    about = {"model": options.model, "by": options.by, "windows": len(tokens)}
    label_channels.save(options.out, order, about)
    return len(tokens)


def body(arguments: list[str]) -> int:
    """Order the channels of a command line."""
    options = read(arguments)
    count = make(options)
    console.terminal().print(f"{count} windows read, channels in {options.out}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
