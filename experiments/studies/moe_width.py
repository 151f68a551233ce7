"""The stage `moe_width`: what drafts of growing width cost and win on a mixture.

A round pays, where reading weights is all that costs, if its tokens exceed the bytes of
its call over those of a call of one token. Bytes are those of weights, with the experts
that were counted, and with the experts that independent choices would meet.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import models
from decoding import Method
from experiments import console
from experiments.measurement import (
    block_width_cost,
    bootstrap,
    met_experts,
    workbench,
)
from experiments.measurement.workbench import Bench, Case
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models.errors import ConfigError

PLAIN = "plain"


def rule_of(config: Any) -> Any:
    """Return the experts of a model's layers; ConfigError if it has none."""
    rules = [config.layer(i).experts for i in range(config.n_layers)]
    found = next((rule for rule in rules if rule), None)
    if found is None:
        raise ConfigError(
            "config.model has no layer of experts: train "
            "configs/language_models/tiny_moe.py, or name a mixture"
        )
    return found


def bytes_of(lm: Any, visited: float) -> float:
    """Return the bytes of weights of a call that visits `visited` experts a layer."""
    count = rule_of(lm.model.config).count
    none, every = (workbench.weight_bytes(lm, tokens) for tokens in (0, np.inf))
    return none + (every - none) * visited / count


def row(bench: Bench, arm: tuple, t: float, prompts: Any, seed: int) -> dict[str, Any]:
    """Decode the prompts by one arm, and count what its calls meet."""
    shape, width, topology = arm
    parts = {} if shape == PLAIN else {"drafter": "drafters/model"}
    parts |= {"topology": topology} if topology else {}
    case = Case(Method.from_config(parts) if parts else Method(), t)
    run = bench.once(case, prompts, seed)
    met = met_experts.count(bench, case, prompts, seed)
    new, calls = [len(text) for text in run.tokens], run.calls
    read = bytes_of(bench.lm, met.experts)
    return {
        "shape": shape,
        "width": width,
        "batch": bench.batch,
        "temperature": t,
        "tokens_per_call": sum(new) / sum(calls),
        "ci95": bootstrap.tokens_per_call_interval(new, calls),
        "read": read,
        "read_expected": bytes_of(bench.lm, met.expected),
        **{f"met_{name}": value for name, value in met._asdict().items()},
    }


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None, dense: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    if lm is None:
        names = (config.model, config.draft, config.dense)
        lm, draft, dense = map(models.load, names)
    rule_of(lm.model.config)
    size, new = config.prompt_tokens, config.max_new_tokens
    prompts = [p for task in common.texts(config, lm).values() for p in task]
    every = ((PLAIN, 1, None), *config.arms)
    cells = [
        (batch, float(t), arm)
        for batch in config.batches
        for t in config.temperatures
        for arm in every
    ]
    rows = []
    with console.bar(len(cells), "widths") as bar:
        for batch, t, arm in cells:
            key = f"{arm[0]}-{arm[1]}-b{batch}-t{t:g}"
            bar.doing(key)
            bench = Bench(lm, {"draft": draft}, size, new, batch)
            work = functools.partial(row, bench, arm, t, prompts, config.seed)
            rows.append(store.make("rows", key, work))
            bar.done(f"{key:20} {rows[-1]['tokens_per_call']:5.2f} tokens/call")
    widths = sorted({width for _, width, _ in every})
    timed = {
        name: store.make(
            "times",
            name,
            functools.partial(block_width_cost.call_times, timed_lm, widths),
        )
        for name, timed_lm in (("mixture", lm), ("dense", dense))
    }
    tables = [
        table(rows, batch, t) for batch in config.batches for t in config.temperatures
    ]
    plots = [plot(rows, batch) for batch in config.batches]
    tables.append(time_table(timed))
    about = {"tables": tables, "plots": plots}
    return common.study(store, moe_width=rows, times=timed, **about)


def ratio(rows: Sequence[dict[str, Any]], mine: dict[str, Any], name: str) -> float:
    """Return what a row's calls read, over what plain decoding's do."""
    alike = ("batch", "temperature")
    plain = next(
        r for r in rows if r["shape"] == PLAIN and all(r[k] == mine[k] for k in alike)
    )
    return mine[name] / plain["read"]


def table(rows: Sequence[dict[str, Any]], batch: int, t: float) -> dict[str, Any]:
    """Make the table of arms at one batch and temperature."""
    mine = [r for r in rows if (r["batch"], r["temperature"]) == (batch, t)]
    lines = []
    for r in mine:
        low, high = r["ci95"]
        read = ratio(rows, r, "read")
        lines.append(
            [
                f"{r['shape']}, {r['width']}",
                f"{r['tokens_per_call']:.2f} ({low:.2f}–{high:.2f})",
                f"{r['met_tokens']:.1f}",
                f"{r['met_experts']:.2f}",
                f"{r['met_expected']:.2f}",
                f"{read:.2f}",
                f"{ratio(rows, r, 'read_expected'):.2f}",
                f"{r['tokens_per_call'] / read:.2f}",
            ]
        )
    heads = (
        "draft, width | tokens/call | tokens of a call | experts met | expected | "
        "bytes | expected bytes | tokens by bytes"
    )
    notes = [
        "experts met: of a layer, by a call, mean over calls and layers; expected: if "
        "all tokens chose independently. bytes: of weights that a call reads, over "
        "plain decoding's. tokens by bytes: tokens a call over bytes; above 1 the "
        "draft pays where reading weights is all that costs, its own calls left out."
    ]
    title = f"batch {batch}, T = {t:g}"
    return {"title": title, "heads": heads.split(" | "), "lines": lines, "notes": notes}


def time_table(timed: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Make the table of a call's time by width."""
    lines = [
        [str(a["width"])] + [f"{x['ms']:.2f} ({x['plain_calls']:.2f})" for x in (a, b)]
        for a, b in zip(timed["mixture"], timed["dense"])
    ]
    return {
        "title": "Milliseconds of a call on this machine, batch 1",
        "heads": ["width", "mixture (in calls of one)", "dense (in calls of one)"],
        "lines": lines,
        "notes": ["medians; the chain's keys are 256 tokens long"],
    }


def plot(rows: Sequence[dict[str, Any]], batch: int) -> dict[str, Any]:
    """Plot tokens a call, and what a call reads, by width, at the highest T."""
    t = max(r["temperature"] for r in rows)
    mine = [r for r in rows if (r["batch"], r["temperature"]) == (batch, t)]
    series = []
    for shape in dict.fromkeys(r["shape"] for r in mine if r["shape"] != PLAIN):
        own = [r for r in mine if r["shape"] in (shape, PLAIN)]
        x = [r["width"] for r in own]
        read = [ratio(rows, r, "read") for r in own]
        gained = [r["tokens_per_call"] for r in own]
        error = [(r["ci95"][1] - r["ci95"][0]) / 3.92 for r in own]
        series += [
            {"name": f"{shape}: tokens a call", "x": x, "y": gained, "error": error},
            {
                "name": f"{shape}: bytes a call",
                "x": x,
                "y": read,
                "error": [0.0] * len(x),
            },
        ]
    trees = [r for r in mine if r["shape"] in ("tree", PLAIN)]
    expected = [ratio(rows, r, "read_expected") for r in trees]
    x = [r["width"] for r in trees]
    name = "tree: bytes, independent choices"
    series.append({"name": name, "x": x, "y": expected, "error": [0.0] * len(x)})
    return {
        "name": f"moe_width_b{batch}",
        "title": f"tokens and bytes of a call; batch {batch}, T = {t:g}",
        "x": "width of a row's block",
        "log": True,
        "series": series,
    }


STAGE = Stage(
    run,
    "A mixture of experts, drafts of growing width",
    ("tasks", "temperatures", "arms", "batches"),
)
