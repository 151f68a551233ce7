"""Attention over copied prefixes and over one: time, bytes, difference; and texts."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding.loops import initial_state
from experiments import console
from experiments.benchmarks import long_context
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, table
from kernels.shared_prefix_attention import Level, shared_prefix_attention
from kernels.tree_attention import tree_attention
from models.base import pack_bits
from models.errors import ConfigError

ALWAYS, NEVER = 1, 1 << 30  # saved slots from which a prefix is shared


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    if min(config.rows) < 1 or min(config.prefixes) < 1 or config.repeats < 1:
        raise ConfigError(
            f"config.rows={config.rows}, prefixes={config.prefixes}, repeats="
            f"{config.repeats}: use at least 1"
        )
    lm = lm or models.load(config.model)
    cells = [(prefix, rows) for prefix in config.prefixes for rows in config.rows]
    found, texts = [], []
    with console.bar(len(cells) + len(config.texts), "hydragen") as bar:
        for prefix, rows in cells:
            bar.doing(f"{rows} rows of {prefix}")
            work = functools.partial(attended, config, prefix, rows)
            found.append(store.make("rows", f"{prefix}-{rows}", work))
            bar.done(f"{rows} rows of {prefix}")
        for rows in config.texts:
            bar.doing(f"texts of {rows} rows")
            work = functools.partial(written, config, lm, rows)
            texts.append(store.make("rows", f"texts-{rows}", work))
            bar.done(f"texts of {rows} rows")
    return common.study(store, tables=[attention_table(found), text_table(texts)])


def parts(config: Any, prefix: int, rows: int) -> tuple[Any, Any, Any, Any, Any]:
    """Draw q, the prefix and the suffixes; a row's node sees the prefix and its own."""
    rng = np.random.default_rng([config.seed, prefix, rows])
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    q = draw(rows, 1, config.heads, config.dim)
    common_ = [draw(1, config.groups, prefix, config.dim) for _ in range(2)]
    own = [draw(rows, config.groups, config.suffix, config.dim) for _ in range(2)]
    bits = jnp.broadcast_to(pack_bits(jnp.ones((1, 1), bool)), (rows, 1, 1))
    lengths = jnp.full((rows,), config.suffix - 1, jnp.int32)
    return q, common_, own, lengths, bits


def forms(config: Any, prefix: int, rows: int) -> tuple[Callable, Callable, int, int]:
    """Make both forms, compiled, and the bytes of their keys and values."""
    q, common_, own, lengths, bits = parts(config, prefix, rows)
    scale = config.dim**-0.5
    whole = [
        jnp.concatenate([jnp.repeat(a, rows, 0), b], 2) for a, b in zip(common_, own)
    ]

    @jax.jit
    def copied(k: Any, v: Any) -> Any:
        return tree_attention(q, k, v, lengths + prefix, bits, scale=scale)[0]

    @jax.jit
    def shared(k: Any, v: Any, own_k: Any, own_v: Any) -> Any:
        level = Level(k, v, jnp.full((1,), prefix, jnp.int32))
        rest = (own_k, own_v, lengths, bits)
        return shared_prefix_attention(q, [level], *rest, scale=scale)[0]

    nbytes = lambda arrays: sum(x.nbytes for x in arrays)
    return (
        functools.partial(copied, *whole),
        functools.partial(shared, *common_, *own),
        nbytes(whole),
        nbytes(common_) + nbytes(own),
    )


def attended(config: Any, prefix: int, rows: int) -> Row:
    """Time both forms in turns, after a call of each."""
    copied, shared, all_bytes, few_bytes = forms(config, prefix, rows)
    one, other = np.asarray(copied()), np.asarray(shared())
    spent: dict[str, list[float]] = {"copied": [], "shared": []}
    for _ in range(config.repeats):
        for name, call in (("copied", copied), ("shared", shared)):
            started = time.perf_counter()
            for _ in range(config.calls):
                out = call()
            out.block_until_ready()
            spent[name].append((time.perf_counter() - started) / config.calls)
    ratios = np.divide(spent["copied"], spent["shared"])
    return {
        "prefix": prefix,
        "rows": rows,
        "ms": {name: 1e3 * float(np.median(x)) for name, x in spent.items()},
        "ratio": [float(x) for x in np.percentile(ratios, (25, 50, 75))],
        "bytes": [all_bytes, few_bytes],
        "difference": float(np.abs(one - other).max()),
    }


def written(config: Any, lm: Any, rows: int) -> Row:
    """Decode prompts with a common beginning, with copies of it and with one."""
    files = long_context.files(lm)
    (beginning,) = long_context.passages(files, 1, config.prompt, config.seed)
    ends = long_context.passages(files, rows, config.own, config.seed)
    prompts = [[*beginning, *end] for end in ends]
    usual = initial_state.SHARED
    found = {}
    for name, least in (("copied", NEVER), ("shared", ALWAYS)):
        initial_state.SHARED = least
        try:
            write = functools.partial(
                decoding.generate, lm, prompts, max_new_tokens=config.new
            )
            write()
            found[name] = write()
        finally:
            initial_state.SHARED = usual
    one, other = found["copied"], found["shared"]
    return {
        "rows": rows,
        "seconds": [one.stats.seconds, other.stats.seconds],
        "kv_bytes": [one.stats.kv_bytes * rows, other.stats.kv_bytes * rows],
        "same": sum(a == b for a, b in zip(one.tokens, other.tokens)),
    }


def attention_table(found: list[Row]) -> dict[str, Any]:
    """Make a line for each prefix and number of rows."""
    lines = [
        [
            f"{row['prefix']:,}",
            f"{row['rows']}",
            f"{row['ms']['copied']:.2f}",
            f"{row['ms']['shared']:.2f}",
            "{1:.2f} ({0:.2f}–{2:.2f})".format(*row["ratio"]),
            f"{row['bytes'][0] / 2**20:.1f}",
            f"{row['bytes'][1] / 2**20:.1f}",
            f"{row['bytes'][0] / row['bytes'][1]:.1f}",
            f"{row['difference']:.0e}",
        ]
        for row in found
    ]
    heads = ("prefix", "rows", "copied, ms", "shared, ms", "copied / shared")
    sizes = ("copied, MiB", "shared, MiB", "ratio", "difference")
    note = (
        "ms: median of a call; copied / shared: median of the turns' ratios, and their "
        "quartiles. MiB: of keys and values, held and read. difference: the largest of "
        "an output."
    )
    return table("One node of each row", (*heads, *sizes), lines, note)


def text_table(texts: list[Row]) -> dict[str, Any]:
    """Make a line for each batch of texts."""
    lines = [
        [
            f"{row['rows']}",
            *(f"{x:.2f}" for x in row["seconds"]),
            f"{row['seconds'][0] / row['seconds'][1]:.2f}",
            *(f"{x / 2**20:.1f}" for x in row["kv_bytes"]),
            f"{row['same']}/{row['rows']}",
        ]
        for row in texts
    ]
    heads = ("rows", "copied, s", "shared, s", "ratio", "copied, MiB", "shared, MiB")
    note = "s: of the second of two calls; MiB: of the target's cache; once each."
    return table("Texts", (*heads, "same texts"), lines, note)


STAGE = Stage(run, "Shared prefixes", ("rows", "prefixes"))
