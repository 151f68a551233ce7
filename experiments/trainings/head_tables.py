"""Tables of trained draft heads, for the report of the stage `draft_heads`."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def line(name: str, figures: dict[str, Any]) -> str:
    """Format a trained head for the terminal."""
    before, after = figures["untrained"], figures["trained"]
    return (
        f"{name:10} {_millions(figures['parameters'])} params, "
        f"{figures['seen_tokens']} tokens in {figures['seconds']:.0f} s; "
        f"tau {before['tau']:.2f} -> {after['tau']:.2f}"
    )


def _millions(count: int) -> str:
    """Format a number of parameters; PPD has hundreds."""
    return f"{count / 1e6:.2f} M" if count >= 10_000 else f"{count}"


def summary(
    name: str, seed: int, figures: dict[str, Any], rows: list, flops: float
) -> dict[str, Any]:
    """Collect the figures of one training, for a line of the comparison."""
    hits = np.asarray([row[0] for row in figures["hits"]])
    return {
        "recipe": name,
        "seed": seed,
        "parameters": figures["parameters"],
        "draft_flops": flops,
        "seen_tokens": figures["seen_tokens"],
        **{name: figures["pace"][name] for name in ("tokens_per_s", "mfu")},
        "top1_by_depth": hits.tolist(),
        "untrained_tau": figures["untrained"]["tau"],
        "curve": figures["curve"],
        "tokens_per_call": [
            [row["task"], row["temperature"], row["tokens_per_call"], row["ci95"]]
            for row in rows
        ],
    }


def table(heads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make the table of the heads, in the form of `report.markdown`."""
    names = (
        "recipe",
        "seed",
        "parameters",
        "draft MFLOP/round",
        "tokens trained on",
        "tokens/s",
        "MFU",
        "first guess right, by depth",
        "untrained τ",
    )
    lines = []
    for head in heads:
        hits = " ".join(f"{100 * h:.0f}" for h in head["top1_by_depth"])
        lines.append(
            [
                head["recipe"],
                f"{head['seed']}",
                _millions(head["parameters"]),
                f"{head['draft_flops'] / 1e6:.0f}",
                f"{head['seen_tokens']}",
                "–" if head["mfu"] is None else f"{head['tokens_per_s']:.0f}",
                "–" if head["mfu"] is None else f"{head['mfu']:.2f}",
                f"{hits} %",
                f"{head['untrained_tau']:.2f}",
            ]
        )
    notes = (
        "draft MFLOP/round: the compiler's count of one round's draft, without what a "
        "head reads of the round before.",
        "tokens/s and MFU: of the training steps, medians, without compilation, "
        "evaluations and checkpoints. MFU: operations of a step's products ÷ (time × "
        "what the devices can do; of CPUs: the best that a large product reached).",
        "first guess right: the chance that the target picks it on held-out text, "
        "given the text's own tokens before it, at the temperature of "
        "`config.evaluate`. τ: tokens per call there, of the real decode loop.",
    )
    return {"title": "Training", "heads": names, "lines": lines, "notes": notes}


def confidence(each: Sequence[tuple[str, dict[str, list[float]]]]) -> dict[str, Any]:
    """Make the table of confidences, by draft."""
    lines = [
        [
            name,
            f"{i + 1}",
            *(f"{x:.3f}" for x in row),
        ]
        for name, found in each
        for i, row in enumerate(
            zip(found["plain"], found["temperatures"], found["scaled"])
        )
    ]
    notes = (
        "error: the mean distance, over ten bins, between the product of a chain's "
        "confidences down to a draft and the chance that all of them are accepted, on "
        "held-out text. scaled: with sequential temperatures, fitted on every other "
        "window and measured on those between.",
    )
    heads = ("recipe", "draft", "error", "temperature", "error, scaled")
    return {"title": "Confidence", "heads": heads, "lines": lines, "notes": notes}
