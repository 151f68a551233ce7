"""The tables of the stage `diffusion`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.studies import search_tables
from experiments.studies.search_tables import table
from training.evaluation.lossy_quality import shared

Row = dict[str, Any]
Rows = Mapping[Any, Row]  # by `diffusion.Cell`
AUTOREGRESSIVE = "autoregressive"
NONE = "recompute"  # the policy that keeps no keys


def made(config: Any, rows: Rows) -> list[dict[str, Any]]:
    """Make all tables; the first one's title is the report's first sentence."""
    found = [in_short(config, rows)]
    for task in config.tasks:
        for temperature in config.temperatures:
            found.append(of_task(config, rows, task, temperature))
    if any("texts_of" in arm for arm in config.arms):
        found.append(same_texts(config, rows))
    return [*found, agreement(config, rows), directions(config, rows)]


def tokens(row: Row) -> int:
    """Count the tokens of a row's texts."""
    return sum(map(len, row["texts"]))


def at(cell: Any, arm: str, cache: str = "") -> Any:
    """Return the cell of another arm on the same problems."""
    return cell._replace(arm=arm, cache=cache)


def speed(rows: Rows, cell: Any) -> float:
    """Return the texts' tokens a second over those of the autoregressive model."""
    rate = lambda row: tokens(row) / row["seconds"]
    return rate(rows[cell]) / rate(rows[at(cell, AUTOREGRESSIVE)])


def modelled(row: Row, free: int) -> float:
    """Return the speed where a call of up to `free` nodes costs as much as one.

    A larger one costs in proportion. Forwards of the whole canvas are told apart from
    the others, which are taken to be of one size.
    """
    cost = 0.0
    for calls, nodes, wide, canvas in zip(
        row["calls"], row["nodes"], row["wide"], row["canvas"]
    ):
        few = calls - wide
        rest = max(nodes - wide * canvas, 0) / max(few, 1)
        cost += wide * max(canvas / free, 1) + few * max(rest / free, 1)
    return tokens(row) / max(cost, 1)


def agrees(row: Row, other: Row) -> np.ndarray:
    """Return by text the share of another row's tokens before the first difference."""
    pairs = zip(row["texts"], other["texts"], strict=True)
    return np.asarray([shared(a, b) / max(len(b), 1) for a, b in pairs])


def in_short(config: Any, rows: Rows) -> dict[str, Any]:
    """Count the rows that are faster than the autoregressive model."""
    lines, below, count = [], 0, 0
    for temperature in config.temperatures:
        for batch in config.batches:
            every = [
                cell
                for cell in rows
                if cell.arm != AUTOREGRESSIVE
                and (cell.temperature, cell.batch) == (temperature, batch)
            ]
            real = [speed(rows, cell) for cell in every]
            model = [modelled(rows[cell], config.free) for cell in every]
            below, count = below + sum(x < 1 for x in real), count + len(real)
            best = every[int(np.argmax(real))]
            lines.append(
                [
                    f"{temperature:g}",
                    str(batch),
                    f"{sum(x >= 1 for x in real)} of {len(real)}",
                    f"{np.median(real):.2f}x",
                    f"{max(real):.2f}x",
                    f"{best.arm}, {best.cache}, {best.task}",
                    f"{np.median(model):.2f}x",
                ]
            )
    title = f"{below} of {count} rows are slower than the autoregressive model here"
    heads = ("temperature", "batch", "faster", "median speed", "best speed", "of")
    return table(title, (*heads, "median, modelled"), lines, SPEED.format(config.free))


def of_task(config: Any, rows: Rows, task: str, temperature: float) -> dict[str, Any]:
    """Make the table of a task at a temperature."""
    lines = []
    for cell, row in rows.items():
        if (cell.task, cell.temperature) != (task, temperature):
            continue
        count, calls = max(tokens(row), 1), sum(row["calls"])
        reference = rows[at(cell, config.reference, NONE)]
        same = agrees(row, reference).mean()
        right = ["–", "–"]
        if row["hits"]:
            shares = np.asarray(row["hits"])
            right = [f"{shares.mean():.3f}", f"{(shares == 1).mean():.2f}"]
        lines.append(
            [
                cell.arm,
                cell.cache or "–",
                str(cell.batch),
                f"{calls / len(row['calls']):.1f}",
                f"{count / calls:.2f}",
                f"{sum(row['nodes']) / count:.0f}",
                f"{sum(row['wide']) / len(row['wide']):.1f}",
                f"{1e3 * row['seconds'] / count:.1f}",
                f"{speed(rows, cell):.2f}x",
                f"{modelled(row, config.free):.2f}x",
                f"{sum(row['bits']) / count:.2f}",
                f"{np.mean(row['loop']):.2f}",
                *right,
                "–" if cell.arm == AUTOREGRESSIVE else f"{same:.2f}",
            ]
        )
    heads = (
        *("schedule", "cache", "batch", "calls", "tokens a call", "nodes a token"),
        *("wide calls", "ms a token", "speed", "modelled", "bits a token"),
        *("repetition", "hits", "exact", "as one a step"),
    )
    return table(f"{task} at T = {temperature:g}", heads, lines, *NOTES)


def same_texts(config: Any, rows: Rows) -> dict[str, Any]:
    """Compare arms with those whose texts they must write, under the same cache."""
    lines = []
    for arm in config.arms:
        if "texts_of" not in arm:
            continue
        for cache in arm.get("caches", (NONE,)):
            own = [c for c in rows if (c.arm, c.cache) == (arm["name"], cache)]
            pairs = [(rows[c], rows[at(c, arm["texts_of"], cache)]) for c in own]
            texts = [x == y for a, b in pairs for x, y in zip(a["texts"], b["texts"])]
            more = [x > y for a, b in pairs for x, y in zip(a["calls"], b["calls"])]
            sums = lambda field, side, pairs=pairs: sum(
                sum(pair[side][field]) for pair in pairs
            )
            words = max(sum(tokens(pair[0]) for pair in pairs), 1)
            lines.append(
                [
                    arm["name"],
                    cache,
                    f"{sum(texts)} of {len(texts)}",
                    str(sum(more)),
                    *(f"{sums('calls', side) / len(texts):.1f}" for side in (0, 1)),
                    *(f"{sums('nodes', side) / words:.0f}" for side in (0, 1)),
                ]
            )
    heads = ("schedule", "cache", "its rule's texts", "texts with more calls")
    costs = ("calls", "rule's calls", "nodes a token", "rule's nodes")
    return table("Draft and verify", (*heads, *costs), lines, VERIFIED)


def agreement(config: Any, rows: Rows) -> dict[str, Any]:
    """Compare every cache with none, under the same schedule, greedily."""
    lines = []
    for arm in config.arms:
        for cache in arm.get("caches", ()):
            pairs = beside_none(rows, arm["name"], cache)
            if cache == NONE or not pairs:
                continue
            share = np.concatenate([agrees(row, other) for row, other in pairs]).mean()
            nodes = [sum(sum(pair[i]["nodes"]) for pair in pairs) for i in (0, 1)]
            part = f"{nodes[0] / max(nodes[1], 1):.2f}"
            lines.append([arm["name"], cache, f"{share:.3f}", part])
    heads = ("schedule", "cache", "tokens before a difference", "nodes")
    return table("Caches beside none", heads, lines, KEPT)


def beside_none(rows: Rows, arm: str, cache: str) -> list[tuple[Row, Row]]:
    """Return greedy rows under a cache, each with the same schedule's without one."""
    pairs = [(rows[c], rows.get(at(c, arm, NONE))) for c in greedy(rows, arm, cache)]
    return [(row, other) for row, other in pairs if other is not None]


def greedy(rows: Rows, arm: str, cache: str, tasks: Sequence[str] = ()) -> list[Any]:
    """List an arm's greedy cells of the largest batch, of some tasks or all."""
    own = (arm, cache, 0.0, max(c.batch for c in rows))
    found = [c for c in rows if (c.arm, c.cache, c.temperature, c.batch) == own]
    return [c for c in found if not tasks or c.task in tasks]


def directions(config: Any, rows: Rows) -> dict[str, Any]:
    """Test the directions that the rows can show, text by text, greedily."""
    one = config.reference
    near = [
        [agrees(*pair) for pair in beside_none(rows, one, cache)]
        for cache in ("dkv", "dual")
    ]
    filled = greedy(rows, one, NONE, ["infilling"])
    sides = [rows[c]["hits"] for c in filled]
    left = [rows[at(c, AUTOREGRESSIVE)]["hits"] for c in filled]
    claims: list[tuple[str, list[Any], list[Any]]] = [
        ("dkv agrees with no cache more than dual", near[0], near[1]),
        (
            "both sides of a hole give more hits than the target's left side",
            sides,
            left,
        ),
    ]
    for arm in config.arms:
        if "beside" not in arm:
            continue
        name, other = arm["name"], arm["beside"]
        code = [rows[c] for c in greedy(rows, name, NONE, ["code"])]
        fixed = [rows[c] for c in greedy(rows, other, NONE, ["code"])]
        for words, field in (("likelier", "bits"), ("in fewer calls", "calls")):
            claim = f"{name} writes code {words} than {other}"
            each = [[lower(row, field) for row in every] for every in (code, fixed)]
            claims.append((claim, each[0], each[1]))
    lines = [
        search_tables.compared(claim, np.concatenate(a), np.concatenate(b))
        for claim, a, b in claims
        if len(a) == len(b) > 0
    ]
    return search_tables.claims("Directions", lines)


def lower(row: Row, field: str) -> np.ndarray:
    """Return a field by text for each of its tokens, negative: less is better."""
    sizes = np.asarray([max(len(text), 1) for text in row["texts"]])
    return -np.asarray(row[field], float) / sizes


SPEED = (
    "speed: tokens a second over those of the autoregressive model on the same texts, "
    "at once and at the same temperature, prompts included, compilation not. modelled: "
    "where a call of up to {} nodes costs as much as one, and a larger one in "
    "proportion. No text may end before its last token."
)
NOTES = (
    "calls: of the model for a text, refreshes included; wide calls: those that ran "
    "the whole canvas. nodes: positions that ran. bits: under the autoregressive "
    "model, behind the prompt alone. repetition: share of a text inside one exact "
    "repetition.",
    "hits: share of the right tokens in their place; exact: texts that are right. as "
    "one a step: tokens before the first difference from the reference schedule's "
    "text without a cache, with the same noise.",
)
VERIFIED = (
    "A draft that is verified must write its rule's text under the same cache. Over "
    "all tasks, temperatures and batches; texts may part at a rounding tie."
)
KEPT = (
    "Greedy texts of all tasks, beside the same schedule's without a "
    "cache; nodes as a share of its. block_causal is exact for another attention, "
    "block by block, so its texts differ."
)
