"""The page's figures: a drawing, its title and its legend each."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reporting import page_charts, token_tree_svg, verdict
from experiments.reporting.page_charts import Bar, Group

KINDS = {verdict.AUTO: "width auto", verdict.PAPER: "the paper’s width"}


def rows(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Draw the sections of a report's rows, each with a chart for every text."""
    drafting = [r for r in every if r["method"] != verdict.PLAIN]
    if not drafting:
        return []
    hues = {n: i for i, n in enumerate(dict.fromkeys(r["method"] for r in drafting))}
    warned = bool(verdict.strays(every))
    band = verdict.own_spread(every)
    return [
        {
            "heading": "Speed-up over plain decoding",
            "text": _speed_text(every, band),
            "warning": "Times are not to be trusted here." if warned else "",
            "legend": _kinds(drafting),
            "figures": _bars(every, "speedup", "speed-up", hues, band),
        },
        {
            "heading": "Tokens per target call",
            "text": "Whiskers: 95 % intervals over prompts. Dashed: plain decoding.",
            "warning": "",
            "legend": _kinds(drafting),
            "figures": _bars(drafting, "tokens_per_call", "tokens/call", hues),
        },
        {
            "heading": "Acceptance by depth",
            "text": "The share of drafts committed, of those offered at that depth"
            + (", at the paper’s width." if len(_kinds(drafting)) > 1 else "."),
            "warning": "",
            "legend": [],
            "figures": _acceptance(drafting, hues),
        },
    ]


def _speed_text(every: Sequence[dict[str, Any]], band: Any) -> str:
    """Describe the bars and whiskers of the times."""
    text = "Decode loop, in turns with plain decoding. Bars: medians"
    if any(verdict.quartiles(row, "speedup") for row in every):
        text += " over repeats, with quartiles"
    elif any("by_repeat" in row for row in every):
        text += " of one repeat, so no spread is known"
    else:
        text += "; an older run, which did not store their spread"
    return text + (". Grey band: plain decoding’s own quartiles." if band else ".")


def _kinds(drafting: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Make the legend (sign, name) of the kinds of width; [] where there is one."""
    kinds = {verdict.width(row) for row in drafting}
    if len(kinds) < 2:
        return []
    return [
        (page_charts.key(0, bar=True, hollow=kind == verdict.PAPER), name)
        for kind, name in KINDS.items()
    ]


def _bars(
    every: Sequence[dict[str, Any]],
    field: str,
    label: str,
    hues: Mapping[str, int],
    band: tuple[float, float] | None = None,
) -> list[dict[str, Any]]:
    """Draw a chart of bars for every text; a method's kinds of width side by side."""
    paired = len(_kinds([r for r in every if r["method"] != verdict.PLAIN])) > 1
    ends = {id(row): _ends(row, field) for row in every}
    top = max(max(row[field], *(ends[id(row)] or (0,))) for row in every)
    figures = []
    for group in verdict.texts(every).values():
        groups = []
        for name in dict.fromkeys(row["method"] for row in group):
            mine = [row for row in group if row["method"] == name]
            mine.sort(key=lambda row: list(KINDS).index(verdict.width(row)))
            hue = hues.get(name)
            drawn = [
                Bar(
                    row[field],
                    ends[id(row)],
                    paired and hue is not None and verdict.width(row) == verdict.PAPER,
                    verdict.width(row) if paired and hue is not None else "",
                )
                for row in mine
            ]
            groups.append(Group(name, hue, drawn))
        title = verdict.label(group[0], every)
        figures.append(figure(title, page_charts.bars(groups, label, top, band=band)))
    return figures


def _ends(row: dict[str, Any], field: str) -> tuple[float, float] | None:
    """Return the ends of a bar's whisker."""
    if field == "tokens_per_call":
        low, high = row["ci95"]
        return (low, high) if high > low else None
    return verdict.quartiles(row, field)


def _acceptance(
    drafting: Sequence[dict[str, Any]], hues: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Draw acceptance by depth for every text that has drafts."""
    figures = []
    for group in verdict.texts(drafting).values():
        known = [
            (row["method"], row["accepted_by_depth"])
            for row in verdict.widest(group)
            if row["accepted_by_depth"]
        ]
        curves = [(name, range(1, len(ys) + 1), ys) for name, ys in known]
        if curves:
            title, across = verdict.label(group[0], drafting), "depth of the draft"
            figures.append(lines(title, curves, "acceptance", across, hues, top=1.0))
    return figures


def figure(
    title: str, drawing: str, legend: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Join a drawing, its title and its legend, (sign, name) each."""
    return {"title": title, "drawing": drawing, "legend": legend}


def lines(
    title: str,
    series: Sequence[page_charts.Series],
    label: str,
    across: str,
    colours: Mapping[str, int] | None = None,
    log: bool = False,
    top: float = 0.0,
    spans: page_charts.Spans | None = None,
) -> dict[str, Any]:
    """Draw a chart of lines with its legend.

    Args:
        title: the text above the chart.
        series: (name, xs, ys) each.
        label: the values in words, for screen readers.
        across: the label of the x axis.
        colours: name -> number of its style; None: one after another.
        log: put x at powers of two.
        top: the end of the y scale; 0: the largest y.
        spans: name -> (low, high) at each x.
    """
    if colours is None:
        colours = {name: i for i, (name, _, _) in enumerate(series)}
    drawing = page_charts.lines(series, label, across, colours, log, top, spans)
    legend = [(page_charts.key(colours[name]), name) for name, _, _ in series]
    return figure(title, drawing, legend)


def call_cost(curve: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Draw call time by block width, of each model."""
    series = [
        (name, [t["width"] for t in times], [t["ms"] for t in times])
        for name, times in curve.items()
    ]
    spans = {
        name: [t["ms_quartiles"] for t in times]
        for name, times in curve.items()
        if all("ms_quartiles" in t for t in times)
    }
    across = "nodes of the block (ms a call)"
    title = "call time by block width"
    return lines(title, series, "call time", across, log=True, spans=spans)


def stored(plot: dict[str, Any]) -> dict[str, Any]:
    """Draw a plot that is stored in the report, with its errors."""
    drawn = plot["series"]
    series = [(s["name"], s["x"], s["y"]) for s in drawn]
    # A fitted law has its line's hue and marker, and the next dash.
    law = len(page_charts.HUES)
    hues = {s["name"]: s["of"] + law if "of" in s else i for i, s in enumerate(drawn)}
    spans = {
        s["name"]: [(y - e, y + e) for y, e in zip(s["y"], s["error"])]
        for s in drawn
        if "of" not in s and any(s["error"])
    }
    title, log = plot["title"], plot.get("log", False)
    return lines(title, series, title, plot["x"], hues, log, spans=spans)


def rounds(trees: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Draw the rounds of each method; [] where no method has any."""
    groups = []
    for name, drawn in trees.items():
        figures = []
        for i, entry in enumerate(drawn):
            drafts = sum(k > 0 for k in entry["kind"]) - 1
            text = f"round {i + 1}: {drafts} drafts, {len(entry['path'])} accepted"
            figures.append(figure(text, token_tree_svg.token_tree(entry)))
        if figures:
            groups.append({"name": name, "figures": figures})
    return groups
