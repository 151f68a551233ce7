"""The stage `conditioned_trees`: chains and trees of one drafter, at equal budgets.

Every arm verifies at most as many drafts a call as its budget. Tokens a call are
counted, and nothing of that is timed. One budget's arms are then timed beside plain
decoding, one text at a time, with the widths that decode fastest here; and the drafts
of the largest budget by themselves, beside a call of a target of usual size.
"""

import functools
from collections.abc import Sequence
from typing import Any

import models
from decoding import Method, Spec, recipes
from experiments import console
from experiments.measurement import (
    block_width_cost,
    draft_times,
    followed_steps,
    machine,
    measured_row,
    paired_difference,
)
from experiments.measurement.followed_steps import SIBLING, SPINE
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, tree_budget
from experiments.studies.tree_budget import Entry
from models.errors import ConfigError
from models.heads.formats import native

Row = dict[str, Any]
BLOCK = "block alone"


def entries(config: Any) -> list[Entry]:
    """List `config.trees`, in the table's order."""
    drafter = native.method(config.heads)["drafter"]
    return [
        Entry(
            name,
            int(budget),
            Method.from_config({"drafter": drafter, "topology": topology}),
        )
        for name, budget, topology in config.trees
    ]


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure missing pieces, and return all of them.

    Raises:
        ConfigError: prompts that fill no batches, or no arm of the timed budget.
    """
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}: change one of them"
        )
    listed = entries(config)
    timed = [e for e in listed if e.budget == config.timed]
    if config.timed and not timed:
        raise ConfigError(
            f"config.timed={config.timed}: no arm has that budget; use one of "
            f"{sorted({e.budget for e in listed})}, or 0 to time none"
        )
    lm = lm or models.load(config.model)
    heads = {"heads": native.load(config.heads, lm)}
    sizes = (config.prompt_tokens, config.max_new_tokens)
    bench, alone = (Bench(lm, heads, *sizes, n) for n in (config.batch, 1))
    prompts = common.texts(config, lm)
    points = [(float(t), task) for t in config.temperatures for task in config.tasks]
    rows, speeds = [], []
    with console.bar(len(points) * len([*listed, *timed]), "trees") as bar:
        for entry in listed:
            for t, task in points:
                key = f"{entry.name}-{entry.budget}-{task}-t{t:g}"
                bar.doing(key)
                work: Any = functools.partial(
                    counted, bench, entry, task, t, prompts[task], config.seed
                )
                rows.append(store.make("rows", key, work))
                bar.done(f"{key:36} {rows[-1]['tokens_per_call']:5.2f} tokens/call")
        bandwidth = store.make("parts", "bandwidth", machine.bandwidth)["gb_s"]
        for entry in timed:
            for t, task in points:
                cell = Cell(entry.name, entry.method, task, t, config.seed, 1, "auto")
                bar.doing(f"time of {cell.key}")
                plain, texts = recipes.method("plain"), prompts[task][: config.alone]
                work = functools.partial(
                    measured_row.row,
                    *(alone, cell, plain, texts, config.repeats, bandwidth),
                )
                speeds.append(store.make("times", cell.key, work)["row"])
                bar.done(common.line(speeds[-1]))
    costs = None
    if config.larger:
        largest = max(e.budget for e in listed)
        arms = [e for e in listed if e.budget == largest]
        prompt = prompts[config.tasks[0]][0]
        work = functools.partial(cost, config, alone, arms, prompt)
        costs = store.make("parts", "draft_times", work)
    ordered = sorted(rows, key=lambda row: (row["temperature"], row["budget"]))
    by = {"budget": "drafts", "temperature": "T"}
    tables = [
        *(tree_budget.table(rows, t) for t in config.temperatures),
        paired_difference.table(ordered, config.directions, by, "tree"),
        followed(ordered),
    ]
    tables += [times(speeds)] if speeds else []
    tables += [draft_cost(costs)] if costs else []
    plots = [tree_budget.plot(rows, t) for t in config.temperatures]
    return common.study(store, counted=rows, tables=tables, plots=plots)


def counted(
    bench: Bench, entry: Entry, task: str, t: float, prompts: Any, seed: int
) -> Row:
    """Measure one arm on one task: see `tree_budget.row`, and `followed_steps`."""
    row = tree_budget.row(bench, entry, task, t, prompts, seed)
    case = Case(entry.method, t)
    return {**row, "followed": followed_steps.counts(bench, case, prompts, seed)}


def cost(config: Any, alone: Bench, arms: Sequence[Entry], prompt: Any) -> Row:
    """Time the drafts of `arms`, and a call of a target of `config.larger` parameters.

    The call's block holds as many nodes as the largest tree.
    """
    drafter, one = arms[0].method.drafter, Spec("topologies/chain", length=1)
    methods = {BLOCK: Method(drafter, topology=one)}
    methods.update((e.name, e.method) for e in arms)
    cases = {name: Case(method, 0.8) for name, method in methods.items()}
    nodes = max(e.budget for e in arms) + 1
    lm = common.enlarged(config, alone.lm)
    sizes = (len(prompt), alone.size)
    call = block_width_cost.call_times(lm, (1, nodes), *sizes)[-1]
    drafts = draft_times.draft_times(alone, cases, prompt)
    return {"drafts": drafts, "call": call, "parameters": config.larger}


def draft_cost(costs: Row) -> dict[str, Any]:
    """Make the table of drafts' times; see `cost`."""
    call, alone = costs["call"]["ms"], costs["drafts"][BLOCK]["ms"]
    lines = []
    for name, each in costs["drafts"].items():
        low, high = each["ms_quartiles"]
        more = each["ms"] - alone
        shares = ("–", "–") if name == BLOCK else (f"{more:.2f}", f"{more / call:.1%}")
        lines.append([name, f"{each['ms']:.2f} ({low:.2f}–{high:.2f})", *shares])
    nodes = costs["call"]["width"]
    return {
        "title": "What a table and its tree cost",
        "heads": ["tree", "ms a draft", "ms above the block's", "of the call"],
        "lines": lines,
        "notes": [
            f"the call: {nodes} nodes through a target of "
            f"{costs['parameters'] / 1e6:.0f}M parameters, {call:.1f} ms. {BLOCK}: the "
            "pass over the block, and one draft. Medians, quartiles in brackets."
        ],
    }


def followed(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of right drafts, on the spine and behind a sibling."""
    totals: dict[tuple, dict[str, list[int]]] = {}
    for row in rows:
        key = (row["tree"], row["budget"], row["temperature"])
        place = totals.setdefault(key, {SPINE: [0, 0], SIBLING: [0, 0]})
        for name, pair in row["followed"].items():
            place[name] = [a + b for a, b in zip(place[name], pair)]
    lines = [
        [name, f"{budget}", f"{t:g}", *(share(*found[p]) for p in (SPINE, SIBLING))]
        for (name, budget, t), found in totals.items()
    ]
    return {
        "title": "The next token is among a node's drafts",
        "heads": ["tree", "drafts", "T", "on the spine", "behind a sibling"],
        "lines": lines,
        "notes": [
            "of the nodes of accepted paths that have drafts. spine: all drafts of the "
            "path are their parents' first."
        ],
    }


def share(right: int, every: int) -> str:
    """Format a share in percent, with the number that it is of."""
    return f"{100 * right / every:.0f} % of {every}" if every else "–"


def times(rows: Sequence[Row]) -> dict[str, Any]:
    """Make the table of speeds."""
    lines = [
        [
            row["method"],
            row["task"],
            f"{row['temperature']:g}",
            f"{row['tokens_per_call']:.2f}",
            f"{row['tokens_per_s']:.0f}",
            f"{row['speedup']:.2f}x",
        ]
        for row in rows
    ]
    notes = [
        "one text at a time, widths chosen by measured times; medians of the repeats, "
        "in turns with plain decoding."
    ]
    heads = ["tree", "task", "T", "tokens/call", "tokens/s", "speed-up"]
    return {"title": "Speed", "heads": heads, "lines": lines, "notes": notes}


STAGE = Stage(
    run,
    "Chains and trees of one drafter for {}",
    ("tasks", "temperatures", "trees", "timed", "directions"),
)
