"""PEARL beside a chain of the same draft and the same length.

Two claims of Liu et al. (*PEARL*, 2025, arXiv 2408.11850): more drafts are accepted
before one is rejected, since a chain stops at `gamma` of them and PEARL does not
(section 4); and a round takes the longer of the two models' times, not their sum.

The paper counts tokens of a chain's round. The table also counts its *runs*, from one
rejected draft to the next over any number of rounds, as for PEARL: they show how much
of the difference comes from the unit. Times are modelled from measured calls, as if
each model had a device like this one.
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
    """Build a method under the coupled verifier: its text is plain decoding's."""
    if name == PEARL:
        return Method.from_config(
            {"drafter": {"name": "drafters/pearl", "gamma": gamma}}
        )
    chain = {"name": "topologies/chain", "length": gamma}
    return Method.from_config({"drafter": "drafters/model", "topology": chain})


def runs(name: str, run: Run) -> list[int]:
    """Count the runs of every prompt, the text's last one included.

    PEARL begins one in every round without a tail. A chain's round continues the run of
    the round before if that round committed its last draft.
    """
    begun = []
    for i, calls in enumerate(run.calls):
        if name == PEARL:
            begun.append(calls - int(run.offered[i][0]))
            continue
        accepted, origin = run.accepted[i], run.origin[i]
        ends = (len(accepted) in origin[-2:]) if calls else False
        begun.append(calls - int(accepted[-1]) + int(ends))
    return begun


def row(
    bench: Bench, name: str, gamma: int, task: str, t: float, prompts: Any, seed: int
) -> dict[str, Any]:
    """Measure one method on one task.

    Args:
        bench: the target, the draft model and sizes.
        name: `CHAIN` or `PEARL`.
        gamma: drafts a round.
        task: its name, for the row.
        t: the temperature.
        prompts: the task's token prompts.
        seed: of the texts.

    Returns:
        The row; `new`, `calls` and `runs` are lists by prompt, for pairing.
    """
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
    """Measure missing pieces, return all of them; load models that are not passed."""
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}: change one of them"
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
    target, draft_times = (
        store.make(
            "parts",
            part,
            functools.partial(block_width_cost.call_times, timed_model, widths),
        )
        for part, timed_model in (("target", lm), ("draft", draft))
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
        tables=[
            table(rows, t, costs, draft_times[0]["ms"]) for t in config.temperatures
        ],
    )


def modelled(name: str, gamma: int, calls: int, costs: Any, draft: float) -> float:
    """Model the milliseconds of `calls` rounds: in parallel, or one after the other.

    `costs[n]`: milliseconds of a target's call of n nodes; `draft`: of a draft's call.
    """
    if name == PEARL:
        return pearl.critical_path([calls], gamma, draft, costs[gamma])[0]
    return calls * (gamma * draft + costs[gamma + 1])


def table(rows: list[dict], t: float, costs: Any, draft: float) -> dict[str, Any]:
    """Make a line for each method and length, over all tasks."""
    lines, mine = [], [row for row in rows if row["temperature"] == t]
    for gamma in dict.fromkeys(row["gamma"] for row in mine):
        base: list = []
        for name in (CHAIN, PEARL):
            rounds = [r for r in mine if (r["method"], r["gamma"]) == (name, gamma)]
            # The paper counts a chain's rounds, and PEARL's runs.
            counted = (
                [{**r, "calls": r["runs"]} for r in rounds] if name == PEARL else rounds
            )
            cells = []
            for pieces in (rounds, [{**r, "calls": r["runs"]} for r in rounds]):
                tokens, parts = bootstrap.pooled(pieces)
                low, high = bootstrap.tokens_per_call_interval(
                    tokens.tolist(), parts.tolist()
                )
                cell = f"{tokens.sum() / parts.sum():.2f} ({low:.2f}–{high:.2f})"
                cells.append(cell)
            tokens, calls = bootstrap.pooled(rounds)
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
