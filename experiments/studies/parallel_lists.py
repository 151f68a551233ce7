"""The stage `parallel_lists`: what tokens that are written at once cost, rule by rule.

Small masked models learn list rules, one a seed. Each then writes the same lists under
every schedule. Rules with one answer have independent tokens; shuffle and the random
rules do not, so parallel writing must break them (`benchmarks/list_rules.py`).
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

import decoding
from decoding import Method
from experiments import console
from experiments.benchmarks import list_rules
from experiments.measurement import commit_order
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import (
    common,
    list_models,
    list_trainings,
    parallel_lists_plots,
    parallel_lists_tables,
)
from models import storage
from models.errors import ConfigError

Row = dict[str, Any]
HELD = 10**6  # above every seed of a training


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Train and decode what is missing and return everything."""
    check(config)
    arms = {arm["name"]: arm for arm in config.arms}
    rows: dict[str, list[Row]] = {name: [] for name in arms}
    with console.bar((1 + len(arms)) * len(config.seeds), "parallel_lists") as bar:
        for seed in config.seeds:
            bar.doing(f"training, seed {seed}")
            keys = [key(name, seed) for name in arms]
            folder, lm = store.path / "models" / f"seed-{seed}", None
            if not all(store.has("rows", name) for name in keys):
                lm = list_models.trained(config, folder, seed)
            bar.done(f"model of seed {seed}")
            for name, arm in arms.items():
                bar.doing(f"{name}, seed {seed}")
                work = functools.partial(measured, config, folder, seed, lm, arm)
                rows[name].append(store.make("rows", key(name, seed), work))
                bar.done(name)
    return common.study(
        store,
        tables=parallel_lists_tables.made(config, rows),
        plots=parallel_lists_plots.made(config, rows),
    )


def key(name: str, seed: int) -> str:
    """Name the piece of an arm and a seed."""
    return re.sub("[^a-z0-9.]+", "-", f"{name} {seed}".lower())


def cases(config: Any, rule: str, count: int) -> list[list_rules.Case]:
    """Draw the lists of a rule, the same for all seeds; fewer are the first of more."""
    return list_rules.cases(rule, count, HELD, (config.length,))


def measured(
    config: Any, folder: storage.Path, seed: int, lm: Any, arm: Mapping[str, Any]
) -> Row:
    """Train what an arm needs beside the model of its seed, and decode."""
    lm, drafts = list_trainings.of_arm(config, folder, seed, lm, arm)
    return written(config, lm, drafts, arm, seed)


def written(
    config: Any, lm: Any, drafts: Mapping[str, Any], arm: Mapping[str, Any], seed: int
) -> Row:
    """Decode all rules' lists under an arm.

    Returns:
        By rule, lists by case: `right` 0 or 1, `calls` of the model, `tokens` written,
        `nodes` run, `texts` of words; and `tau`, the mean order, or None. Of an oracle
        `calls` and `nodes` are the means, once for each case.
    """
    method = Method.from_config({"schedule": arm["schedule"]})
    new = arm.get("canvas", list_models.sizes(config)[1])
    found: Row = {}
    for rule in config.rules:
        every = cases(config, rule, arm.get("lists", config.lists))
        parts = [
            every[i : i + config.batch] for i in range(0, len(every), config.batch)
        ]
        row: Row = {"right": [], "calls": [], "tokens": [], "nodes": [], "texts": []}
        orders: list[list[int]] = []
        for number, part in enumerate(parts):
            prompts = [list_models.prompt(case) for case in part]
            out = decoding.generate(
                lm,
                prompts,
                method=method,
                max_new_tokens=new,
                temperature=arm.get("temperature", 0.0),
                seed=len(parts) * seed + number,
                drafts=dict(drafts) or None,
            )
            nodes, order = out.stats.nodes_run, out.order
            assert nodes is not None and order is not None, "no canvas was written"
            words = [list_models.spelt(tokens) for tokens in out.tokens]
            pairs = zip(part, words, strict=True)
            row["right"] += [int(list_rules.is_right(c, text)) for c, text in pairs]
            row["texts"] += [" ".join(text) for text in words]
            row["tokens"] += [len(tokens) for tokens in out.tokens]
            calls, ran = out.stats.target_calls.tolist(), nodes.tolist()
            if arm.get("oracle", False):
                answers = [[*map(int, tokens)] for tokens in out.tokens]
                mean = list_trainings.oracle_calls(lm, prompts, answers, new)
                ran = [mean * n / c for n, c in zip(ran, calls)]
                calls, order = [mean] * len(calls), []
            row["calls"] += calls
            row["nodes"] += ran
            orders += order
        found[rule] = {**row, "tau": commit_order.left_to_right(orders)}
    return found


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is trained."""
    for rule in config.rules:
        if rule not in list_rules.RULES:
            raise ConfigError(
                f"config.rules={config.rules}: use some of {[*list_rules.RULES]}"
            )
    if not config.rules or not config.seeds or config.lists < 1 or config.batch < 1:
        raise ConfigError(
            f"config.rules={config.rules}, config.seeds={config.seeds}, config.lists="
            f"{config.lists}, config.batch={config.batch}: use one at least of each"
        )
    if not 2 <= config.length < len(list_rules.LETTERS):
        raise ConfigError(
            f"config.length={config.length}: use 2 to {len(list_rules.LETTERS) - 1}"
        )
    if any(list_rules.RULES[rule].numbers for rule in config.rules):
        if config.length >= len(list_models.NUMBERS):
            raise ConfigError(
                f"config.length={config.length}: an index has one digit, use up to "
                f"{len(list_models.NUMBERS) - 1}"
            )
    names = [arm["name"] for arm in config.arms]
    if len({*names}) < len(names) or config.reference not in names:
        raise ConfigError(
            f"config.arms: the names {names} must differ, and config.reference="
            f"{config.reference!r} must be one of them"
        )
    least = list_models.sizes(config)[1]
    for arm in config.arms:
        if arm.get("canvas", least) < least:
            raise ConfigError(
                f"config.arms: {arm['name']!r} has a canvas of {arm['canvas']} "
                f"positions: use {least}, which answers take, or more"
            )
        if arm.get("texts_of", names[0]) not in names:
            raise ConfigError(
                f"config.arms: {arm['texts_of']!r} is no arm: use one of {names}"
            )
        Method.from_config({"schedule": arm["schedule"]})


STAGE = Stage(run, "Lists written in parallel", ("arms", "seeds"))
