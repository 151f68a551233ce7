"""The plots of the stage `parallel_lists`: accuracy by tokens a call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.studies import list_models
from experiments.studies import parallel_lists_tables as tables

FIXED = "diffusion/llada"  # commits a number of positions that the step alone decides


def made(config: Any, rows: tables.Rows) -> list[dict[str, Any]]:
    """Plot numbers of tokens a step, greedily and at T = 1, and thresholds."""
    drawn = []
    for name, title, arms in (
        ("steps_t0", "tokens a step, greedily", fixed(config, 0.0)),
        ("steps_t1", "tokens a step at T = 1 (dashed: closed form)", fixed(config, 1)),
        ("thresholds", "thresholds, greedily", list(config.thresholds)),
    ):
        arms = [arm for arm in arms if arm in rows]
        if len(arms) < 2:
            continue
        lines = [line(rows, rule, arms) for rule in config.rules]
        if name == "steps_t1":
            lines += laws(config, rows, arms)
        title = f"right lists: {title}"
        drawn.append(
            {"name": name, "title": title, "x": "tokens a call", "series": lines}
        )
    return drawn


def fixed(config: Any, temperature: float) -> list[str]:
    """Name the arms that commit a fixed number of tokens a step."""
    other = {"texts_of", *tables.TRAINED}
    return [
        arm["name"]
        for arm in config.arms
        if not other & {*arm}
        and arm.get("temperature", 0.0) == temperature
        and [part["name"] for part in arm["schedule"]] == [FIXED]
    ]


def line(rows: tables.Rows, rule: str, arms: Sequence[str]) -> dict[str, Any]:
    """Return a rule's accuracies by tokens a call, with errors over seeds."""
    points = []
    for arm in arms:
        right = [tables.pooled(row, [rule], "right") for row in rows[arm]]
        rates = [tables.pooled(row, [rule], "tokens", "calls") for row in rows[arm]]
        count = len(right)
        error = np.std(right, ddof=1) / np.sqrt(count) if count > 1 else 0.0
        points.append((float(np.mean(rates)), float(np.mean(right)), float(error)))
    xs, ys, errors = (list(values) for values in zip(*sorted(points)))
    return {"name": rule, "x": xs, "y": ys, "error": errors}


def laws(config: Any, rows: tables.Rows, arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return the closed forms of the rules that have one, by tokens a call."""
    size = list_models.sizes(config)[1]
    each = {arm["name"]: arm for arm in config.arms}
    lines = []
    for number, rule in enumerate(config.rules):
        if rule not in tables.LAWS:
            continue
        points = []
        for arm in arms:
            steps = each[arm]["schedule"][0].get("steps", 0) or size
            value = tables.expected(tables.LAWS[rule], size, steps)
            points.append((size / steps, float(value)))
        xs, ys = (list(values) for values in zip(*sorted(points)))
        name = f"{rule}, closed form"
        lines.append({"name": name, "x": xs, "y": ys, "error": [], "of": number})
    return lines
