"""report.html: one self-contained page, readable on a phone, in light and dark.

`page.html.j2` and its macros hold the page's words and elements, `page.css` its style.
This module computes their contents.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from experiments import stage
from experiments.measurement import measured_row
from experiments.reporting import page_charts, tables, token_tree_svg

TEXTS = 1  # texts shown of each row
PROMPT = 360  # characters shown of a prompt, from its end
DEEPEST = 6  # deeper drafts share its colour
TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("experiments.reporting", ""),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
Mark = Callable[[int, int], str]


def html(report: dict[str, Any], beside: dict[str, Any], notes: Sequence[str]) -> str:
    """Render the page; `beside` holds `samples` and `trees`, not in report.json."""
    style = resources.files("experiments").joinpath("reporting", "page.css").read_text()
    return TEMPLATES.get_template("page.html.j2").render(
        title=tables.title(report),
        style=style,
        place=_place(report),
        cards=_cards(report["rows"]),
        results=_results(report["rows"]),
        notes=notes,
        charts=_charts(report["rows"]),
        curve=_curve(report),
        sections=_sections(report),
        tables=_tables(report),
        plots=_plots(report),
        deepest=DEEPEST,
        texts=_texts(report, beside["samples"]),
        trees=_trees(beside["trees"]),
        provenance=tables.provenance(report),
        config=json.dumps(report["config"], indent=1),
    )


def _place(report: dict[str, Any]) -> str:
    """Describe the machine in one line."""
    hard, versions = report["hardware"], report["versions"]
    return (
        f"{hard['processor']}, {hard['cores']} cores · "
        f"{report['bandwidth_gb_s']:.1f} GB/s · jax {versions['jax']}"
    )


def _cards(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Choose the figures at the head of the page."""
    cards = []

    def add(value: str, text: str, kind: str = "") -> None:
        cards.append({"value": value, "text": text, "kind": kind})

    drafting = [r for r in rows if r["method"] != "plain"]
    if drafting:
        # Looping texts flatter every drafter: they are left out of the headline.
        judged = [
            r for r in drafting if r["loop_share"] < measured_row.LOOPING
        ] or drafting
        best = max(judged, key=lambda r: r["speedup"])
        add(f"{best['speedup']:.2f}×", f"best speed-up: {_law(best)}")
        most = max(judged, key=lambda r: r["tokens_per_call"])
        add(f"{most['tokens_per_call']:.2f}", f"most tokens/call: {_law(most)}")
        claimed = [r for r in drafting if r["identical_to_plain"] is not None]
        same = sum(r["identical_to_plain"] for r in claimed)
        ties = sum(r["ties"] for r in claimed)
        add(
            f"{same} of {len(claimed)}",
            f"rows with plain decoding's text ({ties} rounding ties)",
            "good" if same == len(claimed) else "bad",
        )
    plain = [r for r in rows if r["method"] == "plain"]
    if plain:
        used = statistics.median(r["mbu"] for r in plain)
        text = "of the read bandwidth used by plain decoding (median row)"
        add(f"{100 * used:.0f} %", text)
    return cards


def _law(row: dict[str, Any]) -> str:
    return f"{row['method']}, {row['task']}, T = {row['temperature']:g}"


def _table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    marks: Mark = lambda i, j: "",
    names: int = 0,
) -> dict[str, Any]:
    """Make a table of cells (text, CSS class).

    Args:
        heads: the text above each column.
        lines: the text of each row's cells.
        marks: (i, j) -> a further class of the cell in row i, column j.
        names: number of leading columns that hold words; the others hold numbers.
    """
    sides = ["" if j < names else "number" for j in range(len(heads))]
    return {
        "heads": list(zip(heads, sides)),
        "rows": [
            [(cell, f"{sides[j]} {marks(i, j)}") for j, cell in enumerate(cells)]
            for i, cells in enumerate(lines)
        ],
    }


def _results(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a table for each task."""
    task_column = tables.HEADS.index("task")  # the heading of each table
    heads = [head for i, head in enumerate(tables.HEADS) if i != task_column]
    verdict_column = heads.index("identical")
    results = []
    for task in dict.fromkeys(r["task"] for r in rows):
        mine = [r for r in rows if r["task"] == task]

        def mark(i: int, j: int, mine: list = mine) -> str:
            kind = "plain " if mine[i]["method"] == "plain" else ""
            if j == verdict_column:
                verdict = mine[i]["identical_to_plain"]
                kind += {True: "good", False: "bad", None: ""}[verdict]
            return kind

        whole = [tables.cells(row) for row in mine]
        lines = [[x for i, x in enumerate(c) if i != task_column] for c in whole]
        results.append({"task": task, "table": _table(heads, lines, mark, names=1)})
    return results


def _figure(
    title: str, drawing: str, legend: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Join a drawing, its title and its legend: name -> colour number."""
    named = [
        (name, hue % len(page_charts.HUES)) for name, hue in (legend or {}).items()
    ]
    return {"title": title, "drawing": drawing, "legend": named}


def _lines(
    title: str,
    series: Sequence[page_charts.Series],
    label: str,
    across: str,
    colours: Mapping[str, int] | None = None,
    log: bool = False,
    top: float = 0.0,
) -> dict[str, Any]:
    """Draw a chart of lines with its legend.

    Args:
        title: the text above the chart.
        series: (name, xs, ys) each.
        label: the values in words, for screen readers.
        across: the label of the x axis.
        colours: name -> colour number; None: one colour after another.
        log: put x at powers of two.
        top: the end of the y scale; 0: the largest y.
    """
    if colours is None:
        colours = {name: i for i, (name, _, _) in enumerate(series)}
    drawing = page_charts.lines(series, label, across, colours, log, top)
    return _figure(title, drawing, {name: colours[name] for name, _, _ in series})


def _charts(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw three sections, each with a chart for every task and temperature."""
    rows = [r for r in every if r["method"] != "plain"]
    colours = {n: i for i, n in enumerate(dict.fromkeys(r["method"] for r in rows))}
    mean, speed, depth = [], [], []
    for task, temperature in dict.fromkeys((r["task"], r["temperature"]) for r in rows):
        law = (task, temperature)
        mine = [r for r in rows if (r["task"], r["temperature"]) == law]
        name = f"{task}, T = {temperature:g}"
        bars = [(r["method"], r["tokens_per_call"], *r["ci95"]) for r in mine]
        top = max(r["ci95"][1] for r in rows)
        drawing = page_charts.bars(bars, "tokens/call", colours, top)
        mean.append(_figure(name, drawing))
        bars = [(r["method"], r["speedup"], 0.0, 0.0) for r in mine]
        top = max(r["speedup"] for r in rows)
        drawing = page_charts.bars(bars, "speed-up", colours, top)
        speed.append(_figure(name, drawing))
        known = [(r["method"], r["accepted_by_depth"]) for r in mine]
        curves = [(n, range(1, len(a) + 1), a) for n, a in known if a]
        if curves:
            across = "depth of the draft"
            chart = _lines(name, curves, "acceptance", across, colours, top=1.0)
            depth.append(chart)
    sections = (
        ("Tokens per target call", "with 95 % intervals over prompts", mean),
        ("Speed-up over plain decoding", "decode loop, same run", speed),
        ("Acceptance by depth", "P(depth committed | depth offered)", depth),
    )
    return [
        {"heading": heading, "text": text, "figures": figures}
        for heading, text, figures in sections
        if figures
    ]


def _curve(report: dict[str, Any]) -> dict[str, Any] | None:
    """Draw call time by block width, with a table and advice."""
    if not report.get("curve"):
        return None
    times = report["curve"].items()
    series = [(n, [t["width"] for t in ts], [t["ms"] for t in ts]) for n, ts in times]
    across = "nodes of the block (ms per call)"
    chart = _lines("call time by block width", series, "call time", across, log=True)
    target = next(iter(report["curve"].values()))
    lines = [
        (f"{t['width']}", f"{t['ms']:.2f}", f"{t['plain_calls']:.2f}") for t in target
    ]
    table = _table(("nodes", "ms", "plain calls"), lines)
    return {"chart": chart, "table": table, "advice": tables.advice(report)}


def _sections(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the tables of the stage's `sections`."""
    return [
        {
            "title": section.title,
            "table": _table(section.heads, section.lines, section.mark, section.words),
            "notes": section.notes,
        }
        for section in stage.of(report).sections(report)
    ]


def _tables(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Make the tables stored in the report."""
    return [
        {
            "title": table["title"],
            "table": _table(table["heads"], table["lines"], names=1),
            "notes": table["notes"],
        }
        for table in report.get("tables", ())
    ]


def _plots(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw the plots stored in the report."""
    figures = []
    for plot in report.get("plots", ()):
        series = [(s["name"], s["x"], s["y"]) for s in plot["series"]]
        hues = {s["name"]: s.get("of", i) for i, s in enumerate(plot["series"])}
        title, log = plot["title"], plot.get("log", False)
        figures.append(_lines(title, series, title, plot["x"], hues, log))
    return figures


def _texts(report: dict[str, Any], samples: dict[str, Any]) -> list[dict[str, Any]]:
    """Make tabs for each task; the row with the most tokens a call is shown first."""
    rows = [r for r in report["rows"] if samples.get(r["key"])]
    groups = []
    for task in dict.fromkeys(r["task"] for r in rows):
        mine = [r for r in rows if r["task"] == task]
        best = max(mine, key=lambda r: r["tokens_per_call"])
        tabs = [
            {
                "key": row["key"],
                "label": f"{row['method']}, T = {row['temperature']:g}",
                "shown": row is best,
                "samples": [sample(entry) for entry in samples[row["key"]][:TEXTS]],
            }
            for row in mine
        ]
        groups.append({"task": task, "tabs": tabs})
    return groups


def sample(entry: dict[str, Any]) -> dict[str, Any]:
    """Split a text into pieces with their draft depths; 0: the target's own token."""
    prompt = entry["prompt"]
    drafted = sum(o > 0 for o in entry["origin"])
    foot = (
        f"{len(entry['pieces'])} tokens in {entry['calls']} target calls, "
        f"{drafted} of them drafted"
    )
    if entry["loop_share"]:
        foot += f"; {100 * entry['loop_share']:.0f} % is one exact repetition"
    return {
        "prompt": "…" + prompt[-PROMPT:] if len(prompt) > PROMPT else prompt,
        "pieces": [
            (piece, origin, min(origin, DEEPEST))
            for piece, origin in zip(entry["pieces"], entry["origin"], strict=True)
        ],
        "foot": foot,
    }


def _trees(trees: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw the rounds of each method; [] where no method has any."""
    if not any(trees.values()):
        return []
    groups = []
    for name, rounds in trees.items():
        figures = []
        for i, entry in enumerate(rounds):
            drafts = sum(k > 0 for k in entry["kind"]) - 1
            text = f"round {i + 1}: {drafts} drafts, {len(entry['path'])} accepted"
            figures.append(_figure(text, token_tree_svg.token_tree(entry)))
        groups.append({"name": name, "figures": figures})
    return groups
