"""FiRST's routers beside random and fixed sets of exactly as many layers a row."""

import functools
from typing import Any

import numpy as np

import models
from decoding import Spec, recipes
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, layer_exits
from experiments.studies.layer_exits import Arm, Bench
from experiments.studies.search_tables import pooled, table
from models import storage
from models.heads.formats import native
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
    with console.bar(len(named) * len(config.seeds), "routers") as bar:
        for name, arm in named.items():
            for seed in config.seeds:
                bar.doing(f"{name}, seed {seed}")
                work = functools.partial(measured, bench, arm, name, seed)
                key = name.replace(" ", "-").replace(",", "")
                row = store.make("rows", f"{key}-{seed}", work)
                rows.setdefault(name, []).append(row)
                bar.done(name)
    own = [name for name in named if name.startswith("routers")]
    return common.study(
        store,
        tables=[
            layer_exits.quality("Routers and sets of layers", rows, DENSE),
            layer_exits.directions("Directions", pairs(config), rows, config.seeds),
            kept(own, rows, bench.depth),
            layer_exits.drafts("Drafts under the routers", rows),
        ],
    )


def measured(bench: Bench, arm: Arm, name: str, seed: int) -> dict[str, Any]:
    """Measure an arm; of routers, also how many rows keep each layer."""
    drafted = name.startswith("routers") and arm.exit is not None
    row = bench.row(arm, seed, drafted)
    if drafted:
        gates = arm.gates(bench.tokens(seed), np.random.default_rng(0))
        row["kept"] = gates[:, :, -1].sum(1).tolist()
    return row


def arms(config: Any, bench: Bench) -> dict[str, Arm]:
    """Make all arms by name.

    At a price: the routers; random sets, a row's as large as its routers', also such
    that hold layer 0, without which a model may read nothing; the best fixed set of
    training text of that size; all again for the target trained under the routers,
    whose controls run that target, too.
    """
    found = {DENSE: Arm(bench.every)}
    folder = storage.path(config.trained)
    path = scaffold.read_figures(folder)["sets"]
    keeps = np.zeros((bench.depth + 1, bench.depth), bool)
    for layers in path:
        keeps[len(layers), layers] = True  # [count]: the best set of that size
    for price in config.prices:
        routers = native.load(folder / "export" / f"{price:g}", bench.lm)
        forms = {"": None}
        if (folder / "export" / f"{price:g}_lora").exists():
            changes = native.load(folder / "export" / f"{price:g}_lora", bench.lm)
            forms[", adapted"] = layer_exits.changed(bench.lm, changes)
        for suffix, params in forms.items():
            own = bench.lm.params if params is None else params
            votes = functools.partial(bench.votes, own, routers)
            counts = lambda tokens, votes=votes: votes(tokens).sum(1)

            def routed(tokens, rng, votes=votes):
                return bench.constant(votes(tokens), tokens)

            def best(tokens, rng, counts=counts):
                return bench.constant(keeps[counts(tokens)], tokens)

            exit = Spec("exits/first")
            found[f"routers {price:g}{suffix}"] = Arm(routed, params, exit, routers)
            found[f"random {price:g}{suffix}"] = bench.random(counts, params)
            with_first = bench.random(counts, params, 1)
            found[f"random with layer 0 {price:g}{suffix}"] = with_first
            found[f"best fixed {price:g}{suffix}"] = Arm(best, params)
    return found


def pairs(config: Any) -> list[tuple[str, str]]:
    """List the directions: (better, worse)."""
    found = []
    for suffix in ("", ", adapted"):
        for price in config.prices:
            own = f"routers {price:g}{suffix}"
            for other in ("random", "random with layer 0", "best fixed"):
                found.append((own, f"{other} {price:g}{suffix}"))
    found += [(f"routers {p:g}, adapted", f"routers {p:g}") for p in config.prices]
    return found


def kept(names: list[str], rows: dict[str, list], depth: int) -> dict[str, Any]:
    """Tabulate the share of the rows that keep each layer."""
    lines = []
    for name in names:
        total = np.sum([row["kept"] for row in rows[name]], 0)
        cases = len(pooled(rows[name], "nats"))
        shares = [f"{100 * x / cases:.0f} %" for x in total]
        lines.append([name, *shares])
    heads = ("routers", *(f"layer {i}" for i in range(depth)))
    return table("Rows that keep a layer", heads, lines)


STAGE = Stage(run, "FiRST's routers with {}", ("prices", "seeds"))
