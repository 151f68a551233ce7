"""PEARL beside a chain of the same draft and the same length.

Two claims of Liu et al. (PEARL, 2024, arXiv 2408.11850): more drafts are accepted
before one is rejected, since a chain stops at `gamma` of them and PEARL does not
(section 4); and a round takes the longer of the two models' times, not their sum.

A chain's round is what the paper counts for it. Its own *runs*, to the next rejected
draft whatever the number of rounds, stand beside PEARL's: they show how much of the
difference is in what is counted. Times are modelled from measured calls, as if each
model had a device like this one.
"""

import functools
from typing import Any

import numpy as np

import models
from decoding import Method
from decoding.drafters import pearl
from experiments import console
from experiments.measurement import block_width_cost, bootstrap, measured_row, workbench
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case, Run
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, tree_budget
from models.errors import ConfigError

CHAIN, PEARL = "chain", "pearl"


def method(name: str, gamma: int) -> Method:
    """Both under the coupled verifier, so that every text is plain decoding's."""
    if name == PEARL:
        return Method.from_config(
            {"drafter": {"name": "drafters/pearl", "gamma": gamma}}
        )
    chain = {"name": "topologies/chain", "length": gamma}
    return Method.from_config({"drafter": "drafters/model", "topology": chain})


def runs(name: str, run: Run) -> list[int]:
    """Of every prompt: how many runs were begun, the text's last one included.

    PEARL begins one in every round without a tail. A chain's round goes on with the run
    of the round before where that committed the last draft.
    """
    found = []
    for i, calls in enumerate(run.calls):
        if name == PEARL:
            found.append(calls - int(run.offered[i][0]))
            continue
        accepted, origin = run.accepted[i], run.origin[i]
        ends = (len(accepted) in origin[-2:]) if calls else False
        found.append(calls - int(accepted[-1]) + int(ends))
    return found


def row(
    bench: Bench, name: str, gamma: int, task: str, t: float, prompts: Any, seed: int
) -> dict[str, Any]:
    """Tokens, calls and runs of every prompt are kept for pairing."""
    case, reference = Case(method(name, gamma), t), Case(Method(), t)
    run, plain = (bench.once(c, prompts, seed) for c in (case, reference))
    cell = Cell(f"{name}-{gamma}", case.method, task, t, seed, bench.batch)
    same = measured_row.identical(bench, cell, reference, run, plain, prompts)
    return {
        "method": name,
        "gamma": gamma,
        "task": task,
        "temperature": t,
        "new": [len(text) for text in run.tokens],
        "calls": run.calls,
        "runs": runs(name, run),
        "draft_calls": run.draft_calls,
        "loop_share": float(np.mean(workbench.loops(run))),
        "identical_to_plain": same["identical_to_plain"],
    }


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure what is missing and return everything; models are loaded unless given."""
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}"
        )
    gammas = tuple(int(gamma) for gamma in config.gammas)
    if not gammas or min(gammas) < 2:
        raise ConfigError(f"config.gammas={gammas}: give lengths of at least 2")
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    size, new = config.prompt_tokens, config.max_new_tokens
    bench = Bench(lm, {"draft": draft}, size, new, config.batch)
    prompts = builtin_tasks.build(lm, config.tasks, config.prompts, size)
    widths = sorted({1, *gammas, *(gamma + 1 for gamma in gammas)})
    target, own = (
        store.make(
            "parts", part, functools.partial(block_width_cost.call_times, one, widths)
        )
        for part, one in (("target", lm), ("draft", draft))
    )
    rows = []
    cells = [
        (name, gamma, float(t), task)
        for gamma in gammas
        for name in (CHAIN, PEARL)
        for t in config.temperatures
        for task in config.tasks
    ]
    with console.bar(len(cells), "parallel drafting") as bar:
        for name, gamma, t, task in cells:
            key = f"{name}-{gamma}-{task}-t{t:g}"
            bar.doing(key)
            work = functools.partial(
                row, bench, name, gamma, task, t, prompts[task], config.seed
            )
            rows.append(store.make("rows", key, work))
            bar.done(key)
    costs = {int(c["width"]): c["ms"] for c in target}
    return common.study(
        store,
        parallel=rows,
        tables=[table(rows, t, costs, own[0]["ms"]) for t in config.temperatures],
    )


def modelled(name: str, gamma: int, calls: int, costs: Any, draft: float) -> float:
    """Milliseconds of so many rounds: in parallel, or one model after the other."""
    if name == PEARL:
        return pearl.critical_path([calls], gamma, draft, costs[gamma])[0]
    return calls * (gamma * draft + costs[gamma + 1])


def table(rows: list[dict], t: float, costs: Any, draft: float) -> dict[str, Any]:
    """A line for each method and length, over all tasks."""
    lines, mine = [], [row for row in rows if row["temperature"] == t]
    for gamma in dict.fromkeys(row["gamma"] for row in mine):
        base: list = []
        for name in (CHAIN, PEARL):
            own = [r for r in mine if (r["method"], r["gamma"]) == (name, gamma)]
            # What the paper counts: a chain's rounds, and PEARL's runs.
            counted = [{**r, "calls": r["runs"]} for r in own] if name == PEARL else own
            cells = []
            for pieces in (own, [{**r, "calls": r["runs"]} for r in own]):
                tokens, parts = bootstrap.pooled(pieces)
                low, high = bootstrap.tokens_per_call_interval(
                    tokens.tolist(), parts.tolist()
                )
                said = f"{tokens.sum() / parts.sum():.2f} ({low:.2f}–{high:.2f})"
                cells.append(said)
            tokens, calls = bootstrap.pooled(own)
            spent = modelled(name, gamma, int(calls.sum()), costs, draft)
            line = [name, f"{gamma}", *cells]
            if name == PEARL:
                gap, error = bootstrap.difference(counted, base)
                line.append(f"{gap:+.2f} ± {error:.2f}")
            else:
                base = counted
                line.append("")
            lines.append([*line, f"{tokens.sum() * costs[1] / spent:.2f}×"])
    heads = ["method", "γ", "tokens a call", "tokens a run", "run − round", "modelled"]
    notes = [
        "run: from one rejected draft to the next, the target's token counted; in "
        "brackets 95 % over prompts.",
        "run − round: tokens of PEARL's run less tokens of the chain's call, which is "
        "what the paper compares, on the same prompts ± its bootstrap error.",
        "modelled: plain decoding's time ÷ rounds × max(γ draft calls, a target call) "
        "for PEARL, rounds × (γ draft calls + a target call) for the chain; a draft "
        f"call takes {draft:.2f} ms and a target call {costs[1]:.2f} at one token.",
        *tree_budget.identical(mine),
    ]
    return {"title": f"T = {t:g}", "heads": heads, "lines": lines, "notes": notes}


STAGE = Stage(run, "Decoding with {}", ("tasks", "temperatures"), parts=("parallel",))
