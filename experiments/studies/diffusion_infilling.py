"""Holes in code: written by models that see both sides, and by one that sees the left.

Identifiers are counted apart by the sides on which the name stands too.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import models
from decoding import Method
from decoding.denoising import composed
from experiments import console
from experiments.benchmarks import infilling
from experiments.benchmarks.infilling import AFTER, BEFORE, BOTH, NEITHER, Hole
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, table
from models.errors import ConfigError

LEFT = "left to right"  # the autoregressive model's arm
IDENTIFIERS = "identifiers"
SIDES = {BEFORE: "before", AFTER: "behind", BOTH: "on both sides", NEITHER: "nowhere"}


class Given(NamedTuple):
    """The models and the holes."""

    model: Any
    target: Any
    holes: dict[str, list[Hole]]  # by kind


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything."""
    given, rows = loaded(config, lm), []
    arms = (LEFT, *config.arms)
    with console.bar(len(arms) * len(given.holes), "infilling") as bar:
        for kind in given.holes:
            for arm in arms:
                bar.doing(f"{kind}, {arm}")
                work = functools.partial(filled, config, given, kind, arm)
                rows.append(store.make("rows", f"{kind}-{arm}", work))
                bar.done(f"{kind}, {arm}")
    return common.study(store, tables=[shares(rows), claims(rows), sides(rows)])


def loaded(config: Any, lm: Any = None) -> Given:
    """Load the models, and cut the holes.

    Raises:
        ConfigError: the model has no mask token, or the target has one.
    """
    model, target = lm or models.load(config.model), models.load(config.target)
    if not composed.is_canvas(model):
        raise ConfigError(
            f"config.model={config.model!r} has no mask token: name a diffusion model"
        )
    if composed.is_canvas(target):
        raise ConfigError(
            f"config.target={config.target!r} is a diffusion model: name the "
            "autoregressive one of the same tokenizer"
        )
    about = (config.identifiers, config.around, config.most, config.seed)
    sources = builtin_tasks.held_out()
    holes = {IDENTIFIERS: infilling.identifiers(target, sources, *about)}
    for kind in config.kinds if config.humaneval else ():
        sizes = (config.holes, config.around, config.most)
        holes[kind] = infilling.humaneval(target, config.humaneval, kind, *sizes)
    return Given(model, target, holes)


def filled(config: Any, given: Given, kind: str, arm: str) -> Row:
    """Fill the holes of a kind under one arm."""
    holes, lm, settings = given.holes[kind], given.target, {}
    if arm != LEFT:
        lm = given.model
        schedule = [x if isinstance(x, str) else dict(x) for x in config.arms[arm]]
        settings["method"] = Method.from_config({"schedule": schedule})
    written = infilling.fill(lm, holes, config.batch, **settings)
    scores = [infilling.score(h, tokens) for h, tokens in zip(holes, written)]
    return {
        "kind": kind,
        "arm": arm,
        "exact": [s.exact for s in scores],
        "hits": [s.hits for s in scores],
        "sizes": [len(h.middle) for h in holes],
        "seen": [h.seen for h in holes],
        "sample": [
            [h.name, lm.tokenizer.decode([*h.middle]), lm.tokenizer.decode(tokens)]
            for h, tokens in list(zip(holes, written))[:8]
        ],
    }


def shares(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of whole holes and tokens."""
    lines = [
        [
            row["kind"],
            row["arm"],
            f"{len(row['exact'])}",
            f"{np.mean(row['sizes']):.1f}",
            share(row["exact"]),
            share(row["hits"]),
        ]
        for row in rows
    ]
    notes = (
        "right: all tokens of a hole are the text's; tokens: their share in a hole, "
        "means over holes. ± is the standard error.",
    )
    heads = ("holes", "arm", "number", "tokens each", "right", "tokens")
    return table("Filled", heads, lines, *notes)


def sides(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of identifiers by where else their names stand."""
    lines = []
    for seen, where in SIDES.items():
        for row in rows:
            each = [x for x, s in zip(row["exact"], row["seen"]) if s == seen]
            if row["kind"] == IDENTIFIERS and each:
                lines.append([where, row["arm"], f"{len(each)}", share(each)])
    heads = ("the name also stands", "arm", "holes", "right")
    return table("Identifiers, by where their names stand too", heads, lines)


def claims(rows: Sequence[Row]) -> dict[str, Any]:
    """Compare each arm with the one from left to right, hole by hole."""
    base = {row["kind"]: row["exact"] for row in rows if row["arm"] == LEFT}
    lines = []
    for row in rows:
        if row["arm"] == LEFT:
            continue
        apart = np.asarray(row["exact"]) - np.asarray(base[row["kind"]])
        seen = np.asarray(row["seen"])
        parts = {"all": np.full(seen.shape, True)}
        if row["kind"] == IDENTIFIERS:
            parts |= {f"name {SIDES[side]}": seen == side for side in SIDES}
        for name, chosen in parts.items():
            if chosen.sum() > 1:
                where = f"{row['kind']}, {name}"
                lines.append([where, row["arm"], difference(apart[chosen])])
    heads = ("holes", "arm", f"more right than {LEFT}")
    return table("Hole by hole", heads, lines)


def share(values: Sequence[float]) -> str:
    """Format a mean of values from 0 to 1 with its standard error, in percent."""
    error = np.std(values) / max(len(values), 1) ** 0.5
    return f"{100 * np.mean(values):.1f} ± {100 * error:.1f} %"


def difference(apart: np.ndarray) -> str:
    """Format the mean of paired differences with its standard error, in percent."""
    error = apart.std(ddof=1) / len(apart) ** 0.5
    return f"{100 * apart.mean():+.1f} ± {100 * error:.1f} %"


STAGE = Stage(run, "Infilling with {}", ("arms", "kinds"))
