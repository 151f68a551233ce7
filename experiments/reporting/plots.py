"""Draw a report's figures as PNG files; the page has charts of its own."""

import itertools
from collections.abc import Sequence
from typing import Any

import matplotlib

from models import storage

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from experiments import stage
from experiments.reporting import verdict

STYLES, HATCHES = ("-", "--", ":", "-."), ("", "////", "....", "xxxx")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLOURS = ("#64748b", "#2563eb", "#0d9488", "#d97706", "#9333ea", "#dc2626", "#65a30d")
OWN_SPREAD = "plain’s own quartiles"


def draw(report: dict[str, Any], folder: storage.Path) -> None:
    """Draw all figures of a report into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    style: Any = {
        "figure.constrained_layout.use": True,
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
        stage.of(report).draw(report, folder)
        for plot in report.get("plots", ()):
            _plot(plot, folder)


def save(figure: Any, folder: storage.Path, name: str) -> None:
    """Write folder/<name>.png."""
    with storage.new_file(folder / f"{name}.png") as part:
        figure.savefig(part, format="png")
    plt.close(figure)


def _bars(report: dict[str, Any], field: str, label: str, folder: storage.Path) -> None:
    """Draw methods side by side on every task; one panel a temperature.

    A method with rows of both kinds of width has two bars: automatic filled, the
    paper's hollow. Whiskers are 95 % intervals of tokens a call, and quartiles over
    repeats of a time; a grey band is plain decoding's own quartiles.
    """
    rows = [r for r in report["rows"] if r["method"] != verdict.PLAIN]
    if not rows:
        return
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    temperatures = sorted({r["temperature"] for r in rows})
    names = list(dict.fromkeys(r["method"] for r in rows))
    widths = sorted({verdict.width(r) for r in rows})  # "auto" first
    thick = 0.8 / len(names) / len(widths)
    across = len(tasks) * max(1.6, 0.13 * len(names) * len(widths))
    figure, every = plt.subplots(
        len(temperatures),
        squeeze=False,
        figsize=(max(4.5, across), 1.0 + 2.0 * len(temperatures)),
    )
    for axes, t in zip(every[:, 0], temperatures):
        for j, name in enumerate(names):
            for k, width in enumerate(widths):
                drawn = [
                    r
                    for r in rows
                    if (r["method"], r["temperature"]) == (name, t)
                    and verdict.width(r) == width
                ]
                number = j * len(widths) + k
                shift = (number - (len(names) * len(widths) - 1) / 2) * thick
                filled = len(widths) == 1 or width == verdict.AUTO
                axes.bar(
                    [tasks.index(row["task"]) + shift for row in drawn],
                    [row[field] for row in drawn],
                    thick * 0.92,
                    yerr=_errors(drawn, field),
                    label=name if len(widths) == 1 else f"{name}, {width}",
                    capsize=1.5,
                    error_kw={"lw": 0.8},
                    color=COLOURS[j % len(COLOURS)] if filled else "none",
                    hatch=HATCHES[j // len(COLOURS) % len(HATCHES)],
                    edgecolor="white" if filled else COLOURS[j % len(COLOURS)],
                    lw=0 if filled else 0.9,
                )
        axes.axhline(1, color="#888", lw=0.8)
        band = verdict.own_spread([r for r in report["rows"] if r["temperature"] == t])
        if field == "speedup" and band:
            axes.axhspan(*band, color="#888", alpha=0.25, lw=0, label=OWN_SPREAD)
        axes.set_xticks(range(len(tasks)), tasks)
        axes.set_ylabel(label, fontsize=8)
        axes.set_title(f"T = {t:g}", fontsize=9, loc="left")
    _legend(figure, every[0][0])
    save(figure, folder, field)


def _errors(rows: Sequence[dict[str, Any]], field: str) -> Any:
    """Compute the whiskers of bars, (below, above); None where there are none."""
    pairs = []
    for row in rows:
        is_count = field == "tokens_per_call"
        ends = row["ci95"] if is_count else verdict.quartiles(row, field)
        if ends is None:
            return None
        pairs.append((row, ends))
    return (
        [max(row[field] - low, 0) for row, (low, _) in pairs],
        [max(high - row[field], 0) for row, (_, high) in pairs],
    )


def _legend(figure: Any, axes: Any) -> None:
    """Add one legend for all panels, at their right."""
    lines = axes.get_legend_handles_labels()
    figure.legend(*lines, fontsize=7, loc="outside right upper")


def _acceptance(report: dict[str, Any], folder: storage.Path) -> None:
    """Draw acceptance by depth, on every task at its lowest temperature."""
    rows = verdict.widest([r for r in report["rows"] if r["accepted_by_depth"]])
    if not rows:
        return
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    names = list(dict.fromkeys(r["method"] for r in rows))
    coldest = {t: min(r["temperature"] for r in rows if r["task"] == t) for t in tasks}
    columns = min(3, len(tasks))
    lines = -(-len(tasks) // columns)
    figure, every = plt.subplots(
        lines,
        columns,
        figsize=(1.3 + 2.9 * columns, 0.4 + 2.5 * lines),
        sharey=True,
        squeeze=False,
    )
    for axes in every.flat[len(tasks) :]:
        axes.set_visible(False)
    for axes, task in zip(every.flat, tasks):
        for row in rows:
            if row["task"] == task and row["temperature"] == coldest[task]:
                number = names.index(row["method"])
                axes.plot(
                    range(1, len(row["accepted_by_depth"]) + 1),
                    row["accepted_by_depth"],
                    marker=MARKERS[number % len(MARKERS)],
                    ms=2.8,
                    lw=1,
                    color=COLOURS[number % len(COLOURS)],
                    ls=STYLES[number // len(COLOURS) % len(STYLES)],
                    label=row["method"],
                )
        axes.set_title(f"{task}, T = {coldest[task]:g}", fontsize=9)
    for axes in every[-1]:
        axes.set_xlabel("depth of the draft")
    for axes in every[:, 0]:
        axes.set_ylabel("P(committed | offered)", fontsize=8)
    _legend(figure, every[0][-1])
    save(figure, folder, "acceptance")


def _curve(report: dict[str, Any], folder: storage.Path) -> None:
    """Draw call time by block width."""
    figure, axes = plt.subplots(figsize=(4.2, 3))
    for name, times in report["curve"].items():
        widths = [t["width"] for t in times]
        ends = [t.get("ms_quartiles", (t["ms"], t["ms"])) for t in times]
        lines = axes.plot(widths, [t["ms"] for t in times], "o-", ms=3, label=name)
        axes.vlines(widths, *zip(*ends), color=lines[0].get_color(), lw=1)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("nodes of the block")
    axes.set_ylabel("ms per call")
    axes.legend(fontsize=7)
    save(figure, folder, "call_time")


def _plot(plot: dict[str, Any], folder: storage.Path) -> None:
    """Draw a stage's plot: lines with errors.

    `log`: x at powers of two. `counts`: cases at each x, drawn as bars below. A line
    with `of`, another line's number, is the fitted law of that line: dashed, in its
    colour.
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
    for i, line in enumerate(plot["series"]):
        law = "of" in line
        colour = line.get("of", i)
        style = STYLES[1 if law else i // len(COLOURS) % len(STYLES)]
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
        xs = sorted({x for line in plot["series"] for x in line["x"]})
        if plot.get("log"):
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        near = 0.06 * (xs[-1] - xs[0])  # closer numbers would overlap
        if plot.get("log") or all(b - a >= near for a, b in itertools.pairwise(xs)):
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.set_title(plot["title"], fontsize=9)
    last.set_xlabel(plot["x"])
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, folder, plot["name"])
