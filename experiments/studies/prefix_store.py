"""What stored prefixes cost: nats of the text after them, bits a value, seconds.

Files of held-out code are cut to a prefix and the tokens after it. The prefix's keys
and values are coded at every level and restored, and the model reads the tokens after
it on the restored cache. The tables are counted on other held-out files.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding.loops import decode
from decoding.serving.cachegen import codec, rans, tables
from decoding.serving.prefix_store import PrefixStore
from experiments import console
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models import base
from models.cache_layouts import stored
from models.errors import ConfigError

LEVELS = tuple(codec.LEVELS)
KEYS = f"caches.{decode.TARGET}."


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    lm = lm or models.load(config.model)
    texts = passages(config, lm)
    first, rest = texts[: config.calibration], texts[config.calibration :]
    with tempfile.TemporaryDirectory() as folder:
        kept = PrefixStore(folder, lm, "plain", new=config.next_tokens)
        made: dict[bool, dict[str, codec.Tables]] = {}

        def calibrated(deltas: bool) -> dict[str, codec.Tables]:
            if deltas not in made:
                rows = [kept.row(text).arrays for text in first]
                made[deltas] = tables.counted(rows, LEVELS, deltas)
            return made[deltas]

        both = lambda: [calibrated(False), calibrated(True)]
        reader = Reader(lm, config.prefix_tokens, config.next_tokens)
        rows = []
        with console.bar(len(rest) + 1, "file") as bar:
            for i, text in enumerate(rest):
                bar.doing(f"file {i}")
                work = functools.partial(_row, kept, reader, text, both)
                rows.append(store.make("rows", f"file_{i}", work))
                bar.done(f"file {i}")
            bar.doing("times")
            timed = lambda: _times(config, lm, folder, rest[0], calibrated(False))
            times = store.make("rows", "times", timed)
            bar.done("times")
    shown = [losses(rows), loads(times, config.prefix_tokens)]
    return common.study(store, repeats=rows, tables=shown)


def passages(config: Any, lm: Any) -> list[list[int]]:
    """Cut the files to as many tokens as a prefix, what follows it, and one more.

    Raises:
        ConfigError: too few held-out files are as long.
    """
    size = config.prefix_tokens + config.next_tokens + 1
    wanted = config.calibration + config.files
    found = []
    for _, text in builtin_tasks.held_out():
        tokens = lm.tokenizer.encode(text)
        if len(tokens) >= size:
            found.append(tokens[:size])
    if len(found) < wanted:
        raise ConfigError(
            f"{len(found)} held-out files have {size} tokens, not {wanted}: lower "
            "config.files or config.calibration"
        )
    return found[:wanted]


class Reader:
    """Reads the tokens after a prefix, on a cache of the prefix's arrays."""

    def __init__(self, lm: Any, prefix: int, after: int):
        self.lm, self.prefix, self.after = lm, prefix, after
        size = prefix + after

        @jax.jit
        def nats(params: Any, cache: Any, tokens: Any) -> Any:
            count = jnp.full((1,), after, jnp.int32)
            part = tokens[None, prefix : prefix + after]
            block = base.causal_block(part, cache.length, count, size)
            block = replace(block, logits_at=base.ALL)
            out, _ = lm.model(params, cache, block)
            laws = jax.nn.log_softmax(out.logits[0].astype(jnp.float32))
            return -laws[jnp.arange(after), tokens[prefix + 1 :]].mean()

        self._nats = nats
        dtype = jax.tree.leaves(lm.params)[0].dtype
        self._empty = lm.model.init_cache(1, size, dtype)

    def nats(self, arrays: stored.Arrays, tokens: list[int]) -> float:
        """Return the mean nats of the tokens after the prefix."""
        own = {n[len(KEYS) :]: x for n, x in arrays.items() if n.startswith(KEYS)}
        cache = stored.unpack(self._empty, 0, own)
        cache = jax.tree.map(jnp.asarray, cache)
        return float(self._nats(self.lm.params, cache, np.asarray(tokens, np.int32)))


def _row(kept: PrefixStore, reader: Reader, text: list[int], both: Callable) -> dict:
    """Measure one file: nats and bits a value at every level."""
    arrays = kept.row(text[: reader.prefix + 1]).arrays
    made = both()
    values = sum(x.size for n, x in arrays.items() if codec.PLACE.match(n))
    found: dict[str, Any] = {"dense": reader.nats(arrays, text)}
    for level in LEVELS:
        table, deltas = (tables[level] for tables in made)
        coded, about = codec.compressed(arrays, table)
        back = codec.decompressed(coded, about, table)
        own, fixed, size = own_tables(arrays, level)
        found[level] = {
            "nats": reader.nats(back, text),
            "raw": fixed / values,
            "own": own / values,
            "table": size / values,
            "calibrated": codec.bits(coded) / values,
            "deltas": codec.bits(codec.compressed(arrays, deltas)[0]) / values,
        }
    return found


def own_tables(arrays: stored.Arrays, level: str) -> tuple[float, float, float]:
    """Return bits of a row under tables of its own, without coding, and of the tables.

    The first is the entropy; none of them has the maxima's bits.
    """
    entropy = fixed = size = 0.0
    for _, symbols, bins in codec.lanes_of(arrays, level):
        count = 2 * codec.top(bins) + 1
        lanes = [np.bincount(lane, minlength=count) for lane in symbols]
        sizes = np.full(len(symbols), count)
        entropy += rans.entropy(symbols, rans.normalised(np.stack(lanes), sizes))
        fixed += symbols.size * float(np.log2(count))
        size += len(symbols) * count * rans.BITS
    return entropy, fixed, size


def losses(rows: list[dict]) -> dict[str, Any]:
    """Make the table of levels: nats against dense, and bits a value."""
    lines = []
    for level in LEVELS:
        more = np.asarray([row[level]["nats"] - row["dense"] for row in rows])
        error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.nan
        mean = lambda name, level=level: np.mean([row[level][name] for row in rows])
        columns = ("raw", "own", "table", "calibrated", "deltas")
        lines.append(
            [
                level,
                f"{more.mean():+.4f} ± {error:.4f}",
                *(f"{mean(name):.2f}" for name in columns),
                f"{16 / mean('calibrated'):.1f}",
                f"{EIGHT / mean('calibrated'):.1f}",
            ]
        )
    dense = np.mean([row["dense"] for row in rows])
    return {
        "title": "Levels of the codec",
        "heads": [
            "level",
            "nats above dense",
            "without coding",
            "own table",
            "+ that table",
            "calibrated",
            "deltas to 1 in 10",
            "smaller than bfloat16",
            "smaller than 8 bits",
        ],
        "lines": lines,
        "notes": [
            f"{len(rows)} held-out files; dense: {dense:.3f} nats a token. ±: standard "
            "error of the paired difference.",
            "Bits a value. calibrated and deltas: what is written, with the lanes' "
            "states and the tokens' maxima; without coding and own table: entropies "
            "of the symbols alone; + that table: 16 bits a symbol of every lane.",
            "8 bits: codes of 8 bits without their scales.",
        ],
    }


EIGHT = 8.0


def _times(config: Any, lm: Any, folder: str, text: list[int], made: dict) -> dict:
    """Time a call of one new token: with its prefix computed, and loaded."""
    prompt = text[: config.prefix_tokens + 1]
    kept = PrefixStore(folder, lm, "plain", new=config.next_tokens)
    tables.save(tables.path(kept.folder), made, kept.weights)
    found: dict[str, Any] = {}

    def timed(name: str, prefixes: Any, size: int) -> None:
        seconds, loaded, read = [], 0, []
        for _ in range(config.repeats + 1):  # the first one compiles
            begun = time.perf_counter()
            out = decoding.generate(lm, [prompt], "plain", 1, prefixes=prefixes)
            seconds.append(time.perf_counter() - begun)
            loaded = out.stats.loaded
            read.append(out.prefixes[0].seconds if out.prefixes else 0.0)
        ms = lambda times: 1e3 * float(np.median(times[1:]))
        found[name] = {
            "ms": ms(seconds),
            "load": ms(read),
            "bytes": size,
            "loaded": loaded,
        }

    timed("computed", None, 0)
    for level in (codec.RAW, *LEVELS):
        kept = PrefixStore(folder, lm, "plain", level=level, new=config.next_tokens)
        entry = kept.add(prompt)
        timed(level, kept, entry.bytes)
        entry.file.unlink()
    return found


def loads(times: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Make the table of times."""
    lines = [
        [
            name,
            f"{row['bytes']:,}" if row["bytes"] else "–",
            f"{row['loaded']}",
            f"{row['load']:.0f}" if row["bytes"] else "–",
            f"{row['ms']:.0f}",
        ]
        for name, row in times.items()
    ]
    return {
        "title": "Loading in place of prefill",
        "heads": ["prefix", "bytes", "tokens loaded", "ms to load", "ms of the call"],
        "lines": lines,
        "notes": [
            f"A call of one new token after a prompt of {tokens + 1} tokens; the "
            "median of the repeats, compilation left out. The file is in the system's "
            "page cache."
        ],
    }


STAGE = Stage(run, "Stored prefixes: {}", ("repeats",))
