"""SkipDecode's schedules beside sets of as many layers that all tokens take."""

import functools
from typing import Any

import numpy as np

import models
from decoding import Spec, recipes
from decoding.exits import skipdecode
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, layer_exits
from experiments.studies.layer_exits import Arm, Bench
from models import storage
from models.heads.formats import native
from training.objectives.predictors import skipdecode as training
from training.runs import scaffold

DENSE = "all layers"


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure what is missing and return everything; load models that are not given."""
    layer_exits.check(config)
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    drafter = recipes.method(config.drafter) if config.drafter else None
    bench = Bench(config, lm, draft, drafter)
    named = arms(config, bench)
    rows: dict[str, list] = {}
    with console.bar(len(named) * len(config.seeds), "schedules") as bar:
        for name, arm in named.items():
            for seed in config.seeds:
                bar.doing(f"{name}, seed {seed}")
                drafted = name.startswith("schedule")
                work = functools.partial(bench.row, arm, seed, drafted)
                key = name.replace(" ", "-").replace(",", "")
                row = store.make("rows", f"{key}-{seed}", work)
                rows.setdefault(name, []).append(row)
                bar.done(name)
    return common.study(
        store,
        tables=[
            layer_exits.quality("Schedules and sets of layers", rows, DENSE),
            layer_exits.directions(
                "Directions", pairs(config, named), rows, config.seeds
            ),
            layer_exits.drafts("Drafts under a schedule", rows),
        ],
    )


def schedule(config: Any, bench: Bench, most: int, least: int, params: Any) -> Arm:
    """Make the arm of a schedule."""
    sizes = (bench.depth, config.prompt, config.prompt + config.new)
    runs = training.scheduled(*sizes, most, least, config.tokens, config.warm)
    gates = np.asarray(runs, bool)[:, None]
    numbers = {"least": least, "tokens": config.tokens, "most": most}
    return Arm(
        lambda tokens, rng: np.broadcast_to(gates, (bench.depth, *tokens.shape)),
        params,
        Spec("exits/skipdecode", **numbers, warm=config.warm),
    )


def mean(config: Any, most: int, least: int) -> int:
    """Return the mean of a schedule's layers over the text, rounded."""
    each = skipdecode.active(np.arange(config.new), most, least, config.tokens)
    return max(round(float(np.mean(np.asarray(each)))), 1)


def arms(config: Any, bench: Bench) -> dict[str, Arm]:
    """Make all arms by name.

    A budget has its schedule; the schedule's form for as many layers at every token of
    the text, `constant`; the best fixed set of as many; random ones. With trained
    changes the schedule and the best fixed set occur with those, too.
    """
    found = {DENSE: Arm(bench.every)}
    depth, folder = bench.depth, storage.path(config.trained)
    figures = scaffold.read_figures(folder) if config.trained else None

    def adapted(name: str) -> Any:
        changes = native.load(folder / "export" / name, bench.lm)
        return layer_exits.changed(bench.lm, changes)

    for most, least in config.budgets:
        count = mean(config, most, least)
        found[f"schedule {most} to {least}"] = schedule(
            config, bench, most, least, None
        )
        warm = min(config.warm, count)
        tops = [*range(warm), *range(depth - (count - warm), depth)]
        found[f"constant {count}"] = bench.fixed(tops)
        sizes = functools.partial(lambda count, t: np.full(len(t), count), count)
        found[f"random {count}"] = bench.random(sizes, None)
        if figures is None:
            continue
        best = figures["sets"][depth - count]
        found[f"best fixed {count}"] = bench.fixed(best)
        if f"{most}_{least}" in figures["budgets"]:
            name = f"schedule {most} to {least}, trained"
            params = adapted(f"{most}_{least}")
            found[name] = schedule(config, bench, most, least, params)
        if str(count) in figures["fixed"]:
            params = adapted(f"fixed_{count}")
            found[f"best fixed {count}, trained"] = bench.fixed(best, params)
    return found


def pairs(config: Any, named: dict[str, Arm]) -> list[tuple[str, str]]:
    """List the directions: (better, worse)."""
    found = []
    for most, least in config.budgets:
        own, count = f"schedule {most} to {least}", mean(config, most, least)
        found += [(own, f"{other} {count}") for other in ("random", "constant")]
        found += [(own, f"best fixed {count}")]
        found += [(f"{own}, trained", own)]
        found += [(f"{own}, trained", f"best fixed {count}, trained")]
    return [pair for pair in dict.fromkeys(found) if {*pair} <= {*named}]


STAGE = Stage(run, "SkipDecode's schedules with {}", ("budgets", "seeds"))
