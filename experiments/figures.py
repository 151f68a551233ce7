"""Figures of a report as PNG files, for documents; the page draws its own."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ("#64748b", "#2563eb", "#0d9488", "#d97706", "#9333ea", "#dc2626", "#65a30d")


def draw(report: dict[str, Any], folder: Path) -> None:
    """Write what the report has figures for."""
    folder.mkdir(parents=True, exist_ok=True)
    style: Any = {
        "figure.dpi": 120,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        "font.size": 9,
        "legend.frameon": False,
    }
    with plt.rc_context(style):
        if report["rows"]:
            _bars(report, "tokens_per_call", "tokens per target call", folder)
            _bars(report, "speedup", "speed-up over plain decoding", folder)
            _acceptance(report, folder)
        if report.get("curve"):
            _curve(report, folder)
        if report.get("peers"):
            _peers(report, folder)
        for plot in report.get("plots", ()):
            _plot(plot, folder)


def _save(figure: Any, folder: Path, name: str) -> None:
    figure.tight_layout()
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)


def _bars(report: dict[str, Any], field: str, label: str, folder: Path) -> None:
    rows = [r for r in report["rows"] if r["method"] != "plain"]
    groups = sorted({(r["task"], r["temperature"]) for r in rows})
    names = list(dict.fromkeys(r["method"] for r in rows))
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(max(4.0, 1.6 * len(groups)), 3.2))
    width = 0.8 / len(names)
    for j, name in enumerate(names):
        at, height, low, high = [], [], [], []
        for i, group in enumerate(groups):
            for row in rows:
                if row["method"] == name and (row["task"], row["temperature"]) == group:
                    value = row[field]
                    ends = row["ci95"] if field == "tokens_per_call" else [value] * 2
                    at.append(i + (j - (len(names) - 1) / 2) * width)
                    height.append(value)
                    low.append(max(value - ends[0], 0))
                    high.append(max(ends[1] - value, 0))
        errors = [low, high] if field == "tokens_per_call" else None
        axes.bar(at, height, width * 0.92, yerr=errors, label=name, capsize=1.5)
    axes.axhline(1, color="#888", lw=0.8)
    axes.set_xticks(range(len(groups)), [f"{task}\nT = {t:g}" for task, t in groups])
    axes.set_ylabel(label)
    axes.legend(ncols=3, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.22))
    _save(figure, folder, field)


def _acceptance(report: dict[str, Any], folder: Path) -> None:
    rows = [r for r in report["rows"] if r["accepted_by_depth"]]
    if not rows:
        return
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    coldest = {t: min(r["temperature"] for r in rows if r["task"] == t) for t in tasks}
    figure, every = plt.subplots(
        1, len(tasks), figsize=(2.9 * len(tasks), 2.8), sharey=True, squeeze=False
    )
    for axes, task in zip(every[0], tasks):
        for row in rows:
            if row["task"] == task and row["temperature"] == coldest[task]:
                depth = range(1, len(row["accepted_by_depth"]) + 1)
                axes.plot(
                    depth,
                    row["accepted_by_depth"],
                    marker="o",
                    ms=3,
                    label=row["method"],
                )
        axes.set_title(f"{task}, T = {coldest[task]:g}", fontsize=9)
        axes.set_xlabel("depth of the draft")
    every[0][0].set_ylabel("P(committed | offered)")
    every[0][0].legend(fontsize=6)
    _save(figure, folder, "acceptance")


def _curve(report: dict[str, Any], folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(4.2, 3))
    for name, times in report["curve"].items():
        widths = [t["width"] for t in times]
        axes.plot(widths, [t["ms"] for t in times], marker="o", ms=3, label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("nodes of the block")
    axes.set_ylabel("ms per call")
    axes.legend(fontsize=7)
    _save(figure, folder, "call_time")


def _plot(plot: dict[str, Any], folder: Path) -> None:
    """Lines with errors, as a stage made them.

    `log`: x in powers of two. `counts`: cases at each x, as bars below. A line with
    `of`, the number of another, is the law of that one: dashed, in its colour.
    """
    counts = plot.get("counts")
    ratios = (3, 1) if counts else (1,)
    figure, every = plt.subplots(
        len(ratios),
        squeeze=False,
        sharex=True,
        figsize=(5.6, 4.4 if counts else 3.4),
        height_ratios=ratios,
    )
    axes, last = every[0][0], every[-1][0]
    kinds = ("-", "--", ":", "-.")
    for i, line in enumerate(plot["series"]):
        law = "of" in line
        colour = line.get("of", i)
        style = kinds[1 if law else i // len(COLOURS) % len(kinds)]
        axes.errorbar(
            line["x"],
            line["y"],
            yerr=None if law else line["error"],
            color=COLOURS[colour % len(COLOURS)],
            marker="" if law else "o",
            ms=3,
            lw=1.2,
            ls=style,
            capsize=2,
            label=line["name"],
        )
    if counts:
        last.bar(counts["x"], counts["n"], 0.04, color=COLOURS[0])
        last.set_ylabel("cases")
    else:
        at = sorted({x for line in plot["series"] for x in line["x"]})
        if plot.get("log"):
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        axes.set_xticks(at, [f"{x:g}" for x in at])
    axes.set_title(plot["title"], fontsize=9)
    last.set_xlabel(plot["x"])
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, folder, plot["name"])


def _peers(report: dict[str, Any], folder: Path) -> None:
    rows = report["peers"]
    figure, axes = plt.subplots(figsize=(5, 0.32 * len(rows) + 1))
    names = [f"{r['size']} {r['method']}" for r in rows]
    axes.barh(names, [r["ratio"] for r in rows], color=COLOURS[1])
    for i, row in enumerate(rows):
        if row.get("aim"):
            axes.plot([row["aim"]] * 2, [i - 0.4, i + 0.4], color="#dc2626")
    axes.axvline(1, color="#888", lw=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times HF transformers (red: aim)")
    _save(figure, folder, "peers")
