"""The stage `tree_budget`: trees of the same number of drafts, on the same texts.

The question of Jeon et al. (*RSD*, 2024, arXiv 2402.14160): if the target verifies a
fixed number of drafts a call, which tree gives the most tokens a call? Nothing is
timed, so a loaded machine gives the same answer. Above temperature 0 the texts of two
trees differ; both are samples of the same law.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import models
from decoding import Method
from experiments import console
from experiments.measurement import (
    bootstrap,
    identity,
    measured_row,
    paired_difference,
    workbench,
)
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case
from experiments.prompts import question_files
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.errors import ConfigError


class Entry(NamedTuple):
    """A tree of the table: its name, its most drafts a call, and its method."""

    name: str
    budget: int
    method: Method


def entries(config: Any) -> list[Entry]:
    """List `config.trees` of `config.budgets` (empty: all), in the table's order."""
    chosen = []
    for name, budget, topology in config.trees:
        if config.budgets and budget not in config.budgets:
            continue
        method = Method.from_config(
            {
                "drafter": "drafters/model",
                "topology": topology,
                "verifier": config.verifier,
            }
        )
        chosen.append(Entry(name, int(budget), method))
    if not chosen:
        raise ConfigError(
            f"config.budgets={config.budgets}: config.trees has none of these budgets"
        )
    return chosen


def row(
    bench: Bench, entry: Entry, task: str, temperature: float, prompts: Any, seed: int
) -> dict[str, Any]:
    """Measure one tree on one task.

    Args:
        bench: the target, the draft model and sizes.
        entry: the tree.
        task: its name, for the row.
        temperature: of both models.
        prompts: the task's token prompts.
        seed: of the texts.

    Returns:
        The row; `new` and `calls` are lists by prompt, for paired comparisons.

    Raises:
        ConfigError: the tree has more drafts than `entry.budget`.
    """
    case = Case(entry.method, temperature)
    parts = bench.compose(case)
    drafts = parts.program.drafter.nodes - 1
    if drafts > entry.budget:
        raise ConfigError(
            f"{entry.name} verifies {drafts} drafts a call, its budget is "
            f"{entry.budget}: give a smaller tree in config.trees"
        )
    run = bench.once(case, prompts, seed)
    new, calls = [len(text) for text in run.tokens], run.calls
    same = None  # another verifier keeps the law of plain decoding, not its text
    if identity.claim(entry.method, parts.guarantee, temperature) is None:
        reference = Case(Method(), temperature)
        plain = bench.once(reference, prompts, seed)
        name = f"{entry.name}-{entry.budget}"
        cell = Cell(name, entry.method, task, temperature, seed, bench.batch)
        comparison = measured_row.identical(bench, cell, reference, run, plain, prompts)
        same = comparison["identical_to_plain"]
    by_depth, _ = workbench.by_depth(run)
    return {
        "tree": entry.name,
        "budget": entry.budget,
        "drafts": drafts,
        "task": task,
        "temperature": temperature,
        "new": new,
        "calls": calls,
        "tokens_per_call": sum(new) / sum(calls),
        "ci95": bootstrap.tokens_per_call_interval(new, calls),
        "drafted_per_call": run.candidates / sum(calls),
        "draft_calls_per_call": run.draft_calls / sum(calls),
        "accepted_by_depth": by_depth,
        "accepted_by_rank": workbench.by_rank(run),
        "loop_share": float(np.mean(workbench.loops(run))),
        "identical_to_plain": same,
    }


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    listed = entries(config)
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}: change one of them"
        )
    if config.data:
        config.tasks = question_files.choose(config.data, config.tasks)
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    size, new = config.prompt_tokens, config.max_new_tokens
    bench = Bench(lm, {"draft": draft}, size, new, config.batch)
    prompts = common.texts(config, lm)
    rows = []
    cells = [
        (entry, float(t), task)
        for entry in listed
        for t in config.temperatures
        for task in config.tasks
    ]
    with console.bar(len(cells), "budget") as bar:
        for entry, t, task in cells:
            key = f"{entry.name}-{entry.budget}-{task}-t{t:g}"
            bar.doing(key)
            work = functools.partial(
                row, bench, entry, task, t, prompts[task], config.seed
            )
            measured = store.make("rows", key, work)
            rows.append(measured)
            bar.done(f"{key:36} {measured['tokens_per_call']:5.2f} tokens/call")
    by = {"budget": "drafts", "temperature": "T"}
    ordered = sorted(rows, key=lambda row: (row["temperature"], row["budget"]))
    tables = [
        *(table(rows, t) for t in config.temperatures),
        paired_difference.table(ordered, config.directions, by, "tree"),
    ]
    return common.study(
        store,
        budget=rows,
        tables=tables,
        plots=[plot(rows, t) for t in config.temperatures],
    )


def _of(rows: Sequence, tree: str, budget: int, t: float) -> list[dict[str, Any]]:
    key = (tree, budget, t)
    return [r for r in rows if (r["tree"], r["budget"], r["temperature"]) == key]


def _names(rows: Sequence) -> tuple[list[str], list[int]]:
    trees = list(dict.fromkeys(r["tree"] for r in rows))
    return trees, sorted({r["budget"] for r in rows})


def table(rows: Sequence[dict[str, Any]], t: float) -> dict[str, Any]:
    """Make the table of trees by budget, at one temperature."""
    trees, budgets = _names(rows)
    lines = []
    for tree in trees:
        cells = []
        for budget in budgets:
            mine = _of(rows, tree, budget, t)
            if not mine:
                cells.append("–")
                continue
            new, calls = bootstrap.pooled(mine)
            low, high = bootstrap.tokens_per_call_interval(new.tolist(), calls.tolist())
            cells.append(f"{new.sum() / calls.sum():.2f} ({low:.2f}–{high:.2f})")
        lines.append([tree, *cells])
    notes = ["tokens a target call, over all tasks; in brackets 95 % over prompts."]
    notes += identical([r for r in rows if r["temperature"] == t])
    heads = ["tree", *(f"{b} drafts" for b in budgets)]
    return {"title": f"T = {t:g}", "heads": heads, "lines": lines, "notes": notes}


def identical(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Write a note on texts that must equal plain decoding's, if any must."""
    same = [r["identical_to_plain"] for r in rows]
    if None in same:  # another verifier's law: a test of its own checks it
        return []
    verdict = "all are" if all(same) else f"{same.count(False)} rows are NOT"
    return [f"plain decoding's texts: {verdict}."]


def plot(rows: Sequence[dict[str, Any]], t: float) -> dict[str, Any]:
    """Plot tokens a call by budget, a line a tree."""
    trees, budgets = _names(rows)
    series = []
    for tree in trees:
        measured = [b for b in budgets if _of(rows, tree, b, t)]
        counts = [bootstrap.pooled(_of(rows, tree, b, t)) for b in measured]
        values = [float(new.sum() / calls.sum()) for new, calls in counts]
        ends = [
            bootstrap.tokens_per_call_interval(n.tolist(), c.tolist())
            for n, c in counts
        ]
        errors = [(high - low) / 3.92 for low, high in ends]
        series.append({"name": tree, "x": measured, "y": values, "error": errors})
    return {
        "name": f"budget_t{t:g}",
        "title": f"tokens a call, T = {t:g}",
        "x": "drafts verified a call",
        "series": series,
    }


STAGE = Stage(
    run,
    "Trees of equal size, verified by {}",
    ("tasks", "temperatures", "trees", "budgets", "directions"),
)
