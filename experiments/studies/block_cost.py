"""Where the time of a round goes, part by part, by the width of its block.

A profiler's trace of the compiled decode loop on CPU: each instruction's time belongs
to the part whose name its metadata carry. The loop is forced to every width in turn, as
`decoding.tune` does, so the rounds are those that decode.
"""

import collections
import functools
import glob
import gzip
import json
import re
import tempfile
from typing import Any

import jax
import numpy as np

import models
from decoding import Method, compose, recipes
from decoding.block_width import tuning
from decoding.loops import engines, initial_state
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.errors import ConfigError

PRODUCTS, HEAD = "products of the layers", "head"
LAYERS = "norms, activations, rotation"
ATTENTION = "attention over the cache"
VOCABULARY = "noise, transforms, arg-max"
REST = "the rest: draft, choice, verification"
PARTS = (PRODUCTS, HEAD, ATTENTION, LAYERS, VOCABULARY, REST)
NAME = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = \(?\w+\[([\d,]*)\]")
COMPUTATION = re.compile(r"^\s*(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
INNER = ("while", "cond", "call", "conditional")  # their instructions count themselves


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    if jax.default_backend() != "cpu":
        raise ConfigError(
            f"this study reads traces of the CPU, and JAX runs on "
            f"{jax.default_backend()}: set JAX_PLATFORMS=cpu"
        )
    lm = lm or models.load(config.model)
    method = recipes.method(config.method)
    drafted = _Loop(config, lm, method)
    cells: list[tuple[str, _Loop, Any]] = [
        ("plain", _Loop(config, lm, Method()), None),
        ("a pause", drafted, (0, 0)),
    ]
    depth = drafted.parts.program.drafter.depth
    cells += [
        (f"{width}", drafted, (i, depth))
        for i, width in enumerate(drafted.parts.program.widths)
    ]
    rows = []
    with console.bar(len(cells), "round") as bar:
        for name, loop, setting in cells:
            bar.doing(name)
            work = functools.partial(_row, config, name, loop, setting)
            rows.append(store.make("rows", name.replace(" ", "_"), work))
            bar.done(name)
    return common.study(store, repeats=rows, tables=[table(rows, config.method)])


def table(rows: list[dict], method: str) -> dict[str, Any]:
    """Make a line for each part, and one for the whole round."""
    heads = ["ms a round", *(row["name"] for row in rows)]
    lines = [
        [part, *(f"{row['parts'].get(part, 0.0):.2f}" for row in rows)]
        for part in PARTS
    ]
    lines.append(["by the clock", *(f"{row['ms']:.2f}" for row in rows)])
    base = rows[0]["ms"]
    lines.append(["in plain rounds", *(f"{row['ms'] / base:.2f}" for row in rows)])
    notes = [
        f"plain: a round of plain decoding; a pause: of {method} without its draft; a "
        "number: with its draft, in a block of so many nodes.",
        "The parts are traced apart from the clock, and tracing takes time itself.",
    ]
    return {
        "title": "The parts of a round",
        "heads": heads,
        "lines": lines,
        "notes": notes,
    }


class _Loop:
    """A method's compiled loop, and a state that never ends."""

    def __init__(self, config: Any, lm: Any, method: Method):
        self.parts = compose.compose(method, lm, config.temperature, {}, width="auto")
        self.params = compose.params(lm, {}, {})
        self.engine = engines.engine(self.parts)
        size = initial_state.bucket(config.prompt_tokens + config.max_new_tokens)
        rng = np.random.default_rng(config.seed)
        prompt = rng.integers(0, lm.model.config.vocab_size, config.prompt_tokens)
        keys = engines.request_keys(config.seed, 1, 1)
        c: Any = lm.model.config
        attended = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
        wide = {attended, c.d_model, (1 + c.gated) * c.d_ff}
        rows = ([prompt.tolist()], [size], keys, size)
        self.state = self.engine.start(self.params, self.parts, *rows)
        slots = self.state.caches["target"].size
        self.sizes = {
            PRODUCTS: wide,
            HEAD: {c.vocab_size},
            ATTENTION: {slots, c.head_dim},
        }

    def spend(self, setting: Any, rounds: int) -> float:
        """Run rounds at a width's index and a depth; return their seconds."""
        if setting is not None:
            self.state = tuning.forced(self.state, setting)
        arguments = (self.engine, self.params, self.state, rounds, 1)
        seconds, self.state = tuning.timed(*arguments)
        return seconds


def _row(config: Any, name: str, loop: _Loop, setting: Any) -> dict[str, Any]:
    loop.spend(setting, 4)
    spent = [loop.spend(setting, config.rounds) for _ in range(config.repeats)]
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            loop.spend(setting, config.rounds)
        (file,) = glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
        with gzip.open(file) as lines:
            events = json.load(lines)["traceEvents"]
    ms = 1e3 * float(np.median(spent)) / config.rounds
    found = parts(events, names(loop.engine.text("advance")), loop.sizes)
    return {
        "name": name,
        "ms": ms,
        "parts": {part: total / config.rounds for part, total in found.items()},
    }


def names(program: str) -> dict[str, tuple[str, int]]:
    """Map each instruction of a compiled program to its traced name and last dimension.

    A fusion without a name has that of its computation's last named instruction.
    """
    own: dict[str, tuple[str, int]] = {}
    called: dict[str, str] = {}
    last: dict[str, str] = {}
    computation = ""
    for line in program.splitlines():
        if head := COMPUTATION.match(line):
            computation = head[1]
            continue
        if not (match := NAME.match(line)):
            continue
        traced = re.search(r'op_name="([^"]*)"', line)
        shape = [int(n) for n in match[2].split(",") if n]
        own[match[1]] = (traced[1] if traced else "", shape[-1] if shape else 1)
        if traced:
            last[computation] = traced[1]
        if inner := CALLED.search(line):
            called[match[1]] = inner[1]
    return {
        name: (traced or last.get(called.get(name, ""), ""), width)
        for name, (traced, width) in own.items()
    }


def parts(
    events: list[dict], traced: dict[str, tuple[str, int]], sizes: dict[str, set[int]]
) -> dict[str, float]:
    """Sum the milliseconds of a trace's instructions by part."""
    totals: collections.Counter = collections.Counter()
    for event in events:
        name = event.get("name", "")
        if "dur" not in event or name not in traced or name.startswith(INNER):
            continue
        totals[part_of(*traced[name], sizes)] += event["dur"] / 1e3
    return dict(totals)


def part_of(traced: str, width: int, sizes: dict[str, set[int]]) -> str:
    """Name an instruction's part.

    Args:
        traced: its traced name; the compiler drops that of some products.
        width: its result's last dimension.
        sizes: the last dimensions of products, of the head and of attention.
    """
    dot = "dot_general" in traced
    if (dot and "logits" in traced) or (not traced and width in sizes[HEAD]):
        return HEAD
    layers = "Layer." in traced
    if (dot and layers) or (not traced and width in sizes[PRODUCTS]):
        return PRODUCTS
    if layers or "final_norm" in traced:
        return LAYERS
    if width in sizes[HEAD]:
        return VOCABULARY
    return ATTENTION if dot or width in sizes[ATTENTION] else REST


STAGE = Stage(run, "The cost of a block: {}", ("repeats",))
