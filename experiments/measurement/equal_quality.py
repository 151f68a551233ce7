"""Compare a lossy method with a simpler baseline at equal loss of quality.

The settings of a method and of the baseline are points (loss, gain). A point of the
baseline counts with the best gain of all its points of no greater loss. Between points
the gain is interpolated, as if two settings were mixed. Each setting of the method is
compared with the baseline at the setting's own loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.measurement.draft_call_cost import DRAWS, verdict
from models.errors import DataError


class Counts(NamedTuple):
    """A setting's numbers by prompt; gain = sum(gained) / sum(paid), loss likewise."""

    gained: Sequence[float]
    paid: Sequence[float]
    lost: Sequence[float]
    of: Sequence[float]


def against(
    own: Mapping[str, Counts], base: Sequence[Counts]
) -> dict[str, dict[str, Any]]:
    """Compute every setting's gain and loss, and the baseline's gain at that loss.

    `base` includes the exact method, whose loss is 0. `gain` is the relative gain over
    the baseline, with a 95 % interval over prompts and a verdict. All are None where
    the setting loses more than any of the baseline's.
    """
    if not base:
        raise DataError("no baseline: give at least the exact method")
    count = len(base[0].gained)
    at = np.random.default_rng(0).integers(count, size=(DRAWS, count))
    # The first row is the sample itself.
    at = np.concatenate([np.arange(count)[None], at])
    gains, losses = (np.stack(x, 1) for x in zip(*(_ratios(b, at) for b in base)))
    rows = {}
    for name, each in own.items():
        gain, loss = _ratios(each, at)
        row: dict[str, Any] = {"gained": float(gain[0]), "loss": float(loss[0])}
        row.update(base=None, gain=None, ci95=None, better=None)
        if loss[0] <= losses[0].max():
            expected = np.array([_at(*draw) for draw in zip(loss, losses, gains)])
            share = gain / expected - 1
            low, high = np.quantile(share[1:], [0.025, 0.975])
            row.update(base=float(expected[0]), gain=float(share[0]))
            row.update(ci95=[float(low), float(high)], better=verdict(low, high))
        rows[name] = row
    return rows


def _ratios(each: Counts, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute gain and loss of every draw of prompts; `at` is int[draws, P]."""
    top, below, lost, of = (np.asarray(x, float)[at].sum(1) for x in each)
    return top / np.maximum(below, 1e-9), lost / np.maximum(of, 1e-9)


def _at(loss: float, losses: np.ndarray, gains: np.ndarray) -> float:
    """Interpolate the baseline's gain at a loss, through the best gain up to each."""
    order = np.lexsort((gains, losses))
    return float(np.interp(loss, losses[order], np.maximum.accumulate(gains[order])))


def table(
    title: str, loss: str, found: Mapping[str, dict[str, Any]], unit: str, base: str
) -> dict[str, Any]:
    """Make the table of `against`'s rows.

    Args:
        title: its heading.
        loss: the measure of loss, in words.
        found: rows by setting.
        unit: the measure of gain, in words.
        base: the baseline's name.
    """
    lines = []
    for name, row in found.items():
        cells = [name, f"{row['loss']:.3f}", f"{row['gained']:.2f}"]
        if row["base"] is None:
            lines.append([*cells, "–", "–", "not matched"])
            continue
        low, high = (100 * x for x in row["ci95"])
        gain = f"{100 * row['gain']:+.1f} % ({low:+.1f} to {high:+.1f})"
        lines.append([*cells, f"{row['base']:.2f}", gain, row["better"]])
    heads = ["", loss, unit, f"{base} at that loss", "above it by", "better"]
    notes = [
        f"{base} at that loss: between its own settings, none of them worse than one "
        "that loses less. *not matched*: none of them loses as much.",
        "above it by: with its 95 % bootstrap interval over prompts; *even*: the "
        "interval holds 0.",
    ]
    return {"title": title, "heads": heads, "lines": lines, "notes": notes}
