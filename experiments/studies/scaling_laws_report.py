"""The laws, tables and plots of the stage `scaling_laws`, from its measured points."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.measurement import log_linear_fit
from experiments.measurement.bootstrap import tokens_per_call_interval

Rows = Sequence[dict[str, Any]]
AXES = ("training tokens", "parameters")
NOTES = (
    "tokens/call: new tokens ÷ target calls, the target's own token included; in "
    "brackets 95 % over prompts. α: how often the first draft of a round is committed; "
    "by depth: each draft, given that the one before it was. A text that ends within a "
    "round leaves the drafts behind its end uncommitted.",
    "parameters: all of a draft's, its embedding included, which is its head too.",
)
FITTED = (
    "y = a + b log2 x, both axes in one fit; b is what a doubling adds. Intervals: "
    "95 %, bootstrapped over prompts and over what is left beside the line.",
    "bend: 95 % of what (log2 x)² adds, about the mean; an interval without 0 says "
    "that the law is not straight in this range.",
)


def made(found: dict[str, Any]) -> dict[str, Any]:
    """Make the report's `scaling` (points, batches, laws), `tables` and `plots`."""
    rows, timed = found["points"], found["batches"]
    laws, plots = [], []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        mine = [row for row in rows if row["temperature"] == temperature]
        fitted = _laws(mine, temperature)
        laws += fitted
        plots += _plots(mine, temperature, fitted[0])
    if len(timed) > 2:
        laws += _by_batch(timed)
    tables = [_points(rows), _fits(laws)]
    if timed:
        tables.append(_batches(timed))
        plots.append(_speeds(timed))
    return {"scaling": {**found, "laws": laws}, "tables": tables, "plots": plots}


def _x(rows: Rows) -> list[list[float]]:
    return [[row["tokens"], row["parameters"]] for row in rows]


def first(row: dict[str, Any]) -> list[int]:
    """Count the rounds that committed their first draft, by prompt."""
    return [depths[0] for depths in row["accepted"]]


def by_depth(row: dict[str, Any]) -> list[float]:
    """Compute P(a draft is committed | the one before it was), by depth."""
    sums = [sum(row["calls"]), *np.sum(row["accepted"], 0).tolist()]
    return [b / a for a, b in itertools.pairwise(sums) if a]


def _laws(rows: Rows, temperature: float) -> list[dict[str, Any]]:
    """Fit tokens per call, and the first draft's acceptance, against both axes."""
    calls = [row["calls"] for row in rows]
    tops = {
        "tokens/call": [row["new"] for row in rows],
        "α": [first(row) for row in rows],
    }
    return [
        _law(what, temperature, AXES, _x(rows), top, calls)
        for what, top in tops.items()
    ]


def _by_batch(timed: Rows) -> list[dict[str, Any]]:
    """Fit tokens per call (units: prompts) and speeds (units: repeats) by batch."""
    x, t = [[row["batch"]] for row in timed], timed[0]["temperature"]
    calls, new = ([row[key] for row in timed] for key in ("calls", "new"))
    drafted, plain = ([r[key] for r in timed] for key in ("seconds", "plain_seconds"))
    written = [[sum(row["new"])] * len(row["seconds"]) for row in timed]
    tops = (
        ("tokens/call", new, calls),
        ("speed-up", plain, drafted),
        ("tokens/s", written, drafted),
    )
    return [_law(what, t, ("batch",), x, top, below) for what, top, below in tops]


def _law(what: str, temperature: float, axes: Sequence[str], x, top, below) -> dict:
    """Fit one law, with its intervals and bends."""
    law = log_linear_fit.straight(x, top, below)
    return {
        "what": what,
        "temperature": temperature,
        "axes": list(axes),
        **law._asdict(),
        "bends": log_linear_fit.bends(x, top, below),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = tokens_per_call_interval(row["new"], row["calls"])
    depths = " ".join(f"{100 * a:.0f}" for a in by_depth(row))
    return [
        f"{sum(row['new']) / sum(row['calls']):.2f} ({low:.2f}–{high:.2f})",
        f"{sum(first(row)) / sum(row['calls']):.3f}",
        f"{depths} %",
        f"{row['same']} of {len(row['new'])}",
    ]


def _points(rows: Rows) -> dict[str, Any]:
    """Make the table of drafts."""
    lines = [
        [
            f"{row['width']} × {row['layers']}",
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['tokens']}",
            f"{row['seed']}",
            f"{row['temperature']:g}",
            *_cells(row),
        ]
        for row in rows
    ]
    heads = ["width × layers", "parameters", "trained on", "seed", "T", "tokens/call"]
    heads += ["α", "by depth", "plain's texts"]
    return {"title": "Drafts", "heads": heads, "lines": lines, "notes": NOTES}


def _fits(laws: Rows) -> dict[str, Any]:
    """Make the table of laws."""
    lines = []
    for law in laws:
        for i, axis in enumerate(law["axes"]):
            low, high = law["ci95"][i]
            bend = "–" if law["bends"] is None else _interval(*law["bends"][i])
            cells = [law["what"], axis, f"{law['temperature']:g}", f"{law['points']}"]
            slope = f"{_number(law['slopes'][i])} ({_interval(low, high)})"
            lines.append([*cells, slope, f"{law['r2']:.3f}", bend])
    heads = ["", "against", "T", "points", "a doubling adds", "R²", "bend"]
    return {"title": "Laws", "heads": heads, "lines": lines, "notes": FITTED}


def _interval(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(x: float) -> str:
    """Format a slope; rounding error counts as 0."""
    return f"{x:+.3g}" if abs(x) > 1e-9 else "0"


def _batches(timed: Rows) -> dict[str, Any]:
    """Make the table of batch sizes."""
    lines = []
    for row in timed:
        ratios = np.asarray(row["plain_seconds"]) / np.asarray(row["seconds"])
        speed = sum(row["new"]) / np.median(row["seconds"])
        full = sum(row["calls"]) / (row["rounds"] * row["batch"])
        low, high = ratios.min(), ratios.max()
        lines.append(
            [
                f"{row['batch']}",
                *_cells(row)[:2],
                f"{100 * full:.0f} %",
                f"{speed:.0f}",
                f"{np.median(ratios):.2f}× ({low:.2f}–{high:.2f})",
                f"{row['same']} of {len(row['new'])}",
            ]
        )
    heads = ["batch", "tokens/call", "α", "rows at work", "tokens/s", "speed-up"]
    notes = [
        "The reference draft at the highest temperature. tokens/call: of a row, which "
        "its batch does not change. rows at work: of rounds × rows; a batch waits for "
        "its longest row.",
        "tokens/s, speed-up over plain decoding of the same batch: medians of repeats "
        "taken in turns, without prefill and compilation; in brackets their range.",
    ]
    heads.append("plain's texts")
    return {"title": "Batch", "heads": heads, "lines": lines, "notes": notes}


def _plots(rows: Rows, temperature: float, law: dict[str, Any]) -> list[dict]:
    """Plot tokens per call along either axis, with the law; acceptance by depth."""
    fitted = log_linear_fit.Law(*(law[field] for field in log_linear_fit.Law._fields))
    sizes = list(
        dict.fromkeys((r["width"], r["layers"], r["parameters"]) for r in rows)
    )
    tokens = sorted({row["tokens"] for row in rows})
    of_size = lambda s: [r for r in rows if (r["width"], r["layers"]) == s[:2]]
    lines = [(f"{s[0]} × {s[1]}", of_size(s), "tokens") for s in sizes]
    by_axis = [_series(lines, 1e-3, fitted)]
    lines = [
        (f"{n} tokens", [r for r in rows if r["tokens"] == n], "parameters")
        for n in tokens
    ]
    by_axis.append(_series(lines, 1e-6, fitted))
    plots = []
    for name, series, label in zip(
        ("tokens", "parameters"),
        by_axis,
        ("thousands of tokens trained on", "millions of parameters"),
    ):
        plots.append(
            {
                "name": f"by_{name}_t{temperature:g}",
                "title": f"tokens per call, T = {temperature:g}; dashed: the law",
                "x": label,
                "log": True,
                "series": series,
            }
        )
    deep = [r for r in rows if r["tokens"] == max(tokens)]
    deep = [r for r in deep if r["seed"] == deep[0]["seed"]]
    series = []
    for row in deep:
        y = by_depth(row)
        name = f"{row['width']} × {row['layers']}"
        x = list(range(1, len(y) + 1))
        series.append({"name": name, "x": x, "y": y, "error": [0.0] * len(y)})
    title = f"acceptance, given the draft before, T = {temperature:g}, most tokens"
    name = f"by_depth_t{temperature:g}"
    return [*plots, {"name": name, "title": title, "x": "depth", "series": series}]


def _series(lines: Sequence[tuple[str, Rows, str]], unit: float, law: Any) -> list:
    """Make the measured lines along an axis, seeds pooled, each with its fitted law."""
    measured, fitted = [], []
    for i, (name, rows, axis) in enumerate(lines):
        at = sorted({row[axis] for row in rows})
        y, error, line = [], [], []
        for x in at:
            mine = [row for row in rows if row[axis] == x]
            new, calls = ([n for row in mine for n in row[k]] for k in ("new", "calls"))
            low, high = tokens_per_call_interval(new, calls)
            y.append(sum(new) / sum(calls))
            error.append((high - low) / 2)
            line.append(law.at([mine[0]["tokens"], mine[0]["parameters"]]))
        x = [round(unit * value, 3) for value in at]
        measured.append({"name": name, "x": x, "y": y, "error": error})
        fitted.append({"name": f"{name}, law", "x": x, "y": line, "error": [], "of": i})
    return [*measured, *fitted]


def _speeds(timed: Rows) -> dict[str, Any]:
    """Plot the speed-up by batch size."""
    y, error = [], []
    for row in timed:
        ratios = np.asarray(row["plain_seconds"]) / np.asarray(row["seconds"])
        y.append(float(np.median(ratios)))
        error.append(float(np.ptp(ratios) / 2))
    x = [row["batch"] for row in timed]
    series = [{"name": "speed-up", "x": x, "y": y, "error": error}]
    title = "speed-up over plain decoding of the same batch"
    return {
        "name": "by_batch",
        "title": title,
        "x": "batch",
        "log": True,
        "series": series,
    }
