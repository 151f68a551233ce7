"""report.html: one self-contained page, readable on a phone, in light and dark."""

import json
import statistics
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from experiments.measurement import measured_row
from experiments.reporting import svg, tables

TEXTS = 1  # shown of each row
PROMPT = 360  # characters of a prompt's end
DEEPEST = 6  # deeper drafts share its colour


def html(report: dict[str, Any], beside: dict[str, Any], notes: Sequence[str]) -> str:
    """The page; `beside` holds the texts and trees that report.json leaves out."""
    style = resources.files("experiments").joinpath("reporting", "page.css").read_text()
    parts = [_head(report), _results(report, notes), _charts(report)]
    parts += [
        _peers(report),
        _replay(report),
        _tables(report),
        _texts(report, beside["samples"]),
        _trees(beside["trees"]),
    ]
    parts.append(_provenance(report))
    name = escape(tables.title(report))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}</title><style>{style}</style></head><body><main>"
        + "".join(parts)
        + "</main></body></html>\n"
    )


def _card(value: str, said: str, kind: str = "") -> str:
    value, said = escape(value), escape(said)
    return f'<div class="card {kind}"><b>{value}</b><span>{said}</span></div>'


def _law(row: dict[str, Any]) -> str:
    return f"{row['method']}, {row['task']}, T = {row['temperature']:g}"


def _head(report: dict[str, Any]) -> str:
    hard, rows = report["hardware"], report["rows"]
    drafting = [r for r in rows if r["method"] != "plain"]
    cards = []
    if drafting:
        # Looping texts flatter every drafter: they are left out of the headline.
        judged = [
            r for r in drafting if r["loop_share"] < measured_row.LOOPING
        ] or drafting
        best = max(judged, key=lambda r: r["speedup"])
        said = f"best speed-up: {_law(best)}"
        cards.append(_card(f"{best['speedup']:.2f}×", said))
        most = max(judged, key=lambda r: r["tokens_per_call"])
        said = f"most tokens/call: {_law(most)}"
        cards.append(_card(f"{most['tokens_per_call']:.2f}", said))
        claimed = [r for r in drafting if r["identical_to_plain"] is not None]
        same = sum(r["identical_to_plain"] for r in claimed)
        kind = "good" if same == len(claimed) else "bad"
        ties = sum(r["ties"] for r in claimed)
        said = f"rows with plain decoding's text ({ties} rounding ties)"
        cards.append(_card(f"{same} of {len(claimed)}", said, kind))
    plain = [r for r in rows if r["method"] == "plain"]
    if plain:
        used = statistics.median(r["mbu"] for r in plain)
        said = "of the read bandwidth used by plain decoding (median row)"
        cards.append(_card(f"{100 * used:.0f} %", said))
    place = f"{hard['processor']}, {hard['cores']} cores · "
    place += f"{report['bandwidth_gb_s']:.1f} GB/s · jax {report['versions']['jax']}"
    return (
        f"<header><h1>{escape(tables.title(report))}</h1><p>{escape(place)}</p>"
        f'<div class="cards">{"".join(cards)}</div></header>'
    )


def _table(
    heads: Sequence[str], lines: Sequence[Sequence[str]], marks: Any, names: int = 0
) -> str:
    """An HTML table; `marks(i, j)` is a cell's class, `names` columns are words."""
    sides = ["" if j < names else "number" for j in range(len(heads))]
    top = "".join(f'<th class="{s}">{escape(h)}</th>' for h, s in zip(heads, sides))
    body = []
    for i, cells in enumerate(lines):
        row = "".join(
            f'<td class="{sides[j]} {marks(i, j)}">{escape(cell)}</td>'
            for j, cell in enumerate(cells)
        )
        body.append(f"<tr>{row}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _markup(note: str) -> str:
    """Emphasis between asterisks, everything else as it is."""
    parts = escape(note).split("*")
    return "".join(p if i % 2 == 0 else f"<em>{p}</em>" for i, p in enumerate(parts))


def _results(report: dict[str, Any], notes: Sequence[str]) -> str:
    if not report["rows"]:
        return ""
    said = tables.HEADS.index("task")  # by the heading above each table
    heads = [head for i, head in enumerate(tables.HEADS) if i != said]
    same = heads.index("identical")
    parts = ["<section><h2>Results</h2>"]
    for task in dict.fromkeys(r["task"] for r in report["rows"]):
        rows = [r for r in report["rows"] if r["task"] == task]

        def mark(i: int, j: int, rows: list = rows) -> str:
            kind = "plain " if rows[i]["method"] == "plain" else ""
            if j == same:
                verdict = rows[i]["identical_to_plain"]
                kind += {True: "good", False: "bad", None: ""}[verdict]
            return kind

        whole = [tables.cells(row) for row in rows]
        lines = [[x for i, x in enumerate(cells) if i != said] for cells in whole]
        table = _table(heads, lines, mark, names=1)
        parts.append(f"<h3>{escape(task)}</h3>{table}")
    listed = "".join(f"<li>{_markup(note)}</li>" for note in notes)
    return "".join(parts) + f'<ul class="notes">{listed}</ul></section>'


def _figure(title: str, drawing: str) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div class="scroll">{drawing}</div></figure>'
    )


def _charts(report: dict[str, Any]) -> str:
    rows = [r for r in report["rows"] if r["method"] != "plain"]
    colours = {n: i for i, n in enumerate(dict.fromkeys(r["method"] for r in rows))}
    mean, speed, depth = [], [], []
    for task, temperature in dict.fromkeys((r["task"], r["temperature"]) for r in rows):
        law = (task, temperature)
        mine = [r for r in rows if (r["task"], r["temperature"]) == law]
        name = f"{task}, T = {temperature:g}"
        bars = [(r["method"], r["tokens_per_call"], *r["ci95"]) for r in mine]
        top = max(r["ci95"][1] for r in rows)
        mean.append(_figure(name, svg.intervals(bars, "tokens/call", colours, top)))
        bars = [(r["method"], r["speedup"], 0.0, 0.0) for r in mine]
        top = max(r["speedup"] for r in rows)
        speed.append(_figure(name, svg.intervals(bars, "speed-up", colours, top)))
        known = [(r["method"], r["accepted_by_depth"]) for r in mine]
        curves = [(n, range(1, len(a) + 1), a) for n, a in known if a]
        if curves:
            across = "depth of the draft"
            drawing = svg.lines(curves, "acceptance", across, colours, top=1.0)
            depth.append(_figure(name, drawing))
    parts = []
    for heading, said, drawings in (
        ("Tokens per target call", "with 95 % intervals over prompts", mean),
        ("Speed-up over plain decoding", "decode loop, same run", speed),
        ("Acceptance by depth", "P(depth committed | depth offered)", depth),
    ):
        if drawings:
            parts.append(
                f"<section><h2>{heading}</h2><p>{said}</p>"
                f'<div class="grid2">{"".join(drawings)}</div></section>'
            )
    return "".join(parts) + _curve(report)


def _curve(report: dict[str, Any]) -> str:
    if not report.get("curve"):
        return ""
    times = report["curve"].items()
    series = [(n, [t["width"] for t in ts], [t["ms"] for t in ts]) for n, ts in times]
    drawing = svg.lines(
        series, "call time", "nodes of the block (ms per call)", log=True
    )
    target = next(iter(report["curve"].values()))
    heads = ("nodes", "ms", "plain calls")
    lines = [
        (f"{t['width']}", f"{t['ms']:.2f}", f"{t['plain_calls']:.2f}") for t in target
    ]
    said = "".join(f"<li>{escape(line)}</li>" for line in tables.advice(report))
    return (
        "<section><h2>What a call costs</h2><p>A block of N nodes in one target call, "
        'and what it is worth in calls of one node.</p><div class="grid2">'
        + _figure("call time by block width", drawing)
        + _figure("target", _table(heads, lines, lambda i, j: ""))
        + f'</div><ul class="notes">{said}</ul></section>'
    )


def _replay(report: dict[str, Any]) -> str:
    if not report.get("replay"):
        return ""
    lines = [tables.replay_cells(row) for row in report["replay"]]
    table = _table(tables.REPLAY_HEADS, lines, lambda i, j: "", names=1)
    note = f'<ul class="notes"><li>{_markup(tables.REPLAYED)}</li></ul>'
    return f"<section><h2>Recorded texts</h2>{table}{note}</section>"


def _tables(report: dict[str, Any]) -> str:
    """Tables and plots that a stage made itself."""
    parts = []
    for found in report.get("tables", ()):
        table = _table(found["heads"], found["lines"], lambda i, j: "", names=1)
        notes = "".join(f"<li>{_markup(note)}</li>" for note in found["notes"])
        parts.append(f"<section><h2>{escape(found['title'])}</h2>{table}")
        parts.append(f'<ul class="notes">{notes}</ul></section>')
    for plot in report.get("plots", ()):
        series = [(s["name"], s["x"], s["y"]) for s in plot["series"]]
        hues = {s["name"]: s.get("of", i) for i, s in enumerate(plot["series"])}
        log = plot.get("log", False)
        drawing = svg.lines(series, plot["title"], plot["x"], hues, log)
        parts.append(f"<section>{_figure(plot['title'], drawing)}</section>")
    return "".join(parts)


def _peers(report: dict[str, Any]) -> str:
    if not report.get("peers"):
        return ""
    rows = report["peers"]

    def mark(i: int, j: int) -> str:
        if j == 6 and rows[i].get("aim"):
            return "good" if rows[i]["ratio"] >= rows[i]["aim"] else "bad"
        return ""

    lines = [tables.peer_cells(r) for r in rows]
    table = _table(tables.PEER_HEADS, lines, mark, names=2)
    reached = report.get("figures", [])

    def met(i: int, j: int) -> str:
        return ("good" if reached[i]["met"] else "bad") if j == 3 else ""

    lines = [tables.figure_cells(figure) for figure in reached]
    aims = _table(tables.FIGURE_HEADS, lines, met, names=1) if lines else ""
    return (
        f"<section><h2>Against HF transformers</h2>{table}"
        f"<h3>figures to reach</h3>{aims}</section>"
    )


def _texts(report: dict[str, Any], samples: dict[str, Any]) -> str:
    rows = [r for r in report["rows"] if samples.get(r["key"])]
    if not rows:
        return ""
    keys = "".join(
        f'<span class="o{d}">{d}{"+" if d == DEEPEST else ""}</span>'
        for d in range(1, DEEPEST + 1)
    )
    parts = [
        "<section><h2>Which tokens came from drafts</h2>"
        '<p class="legend">no colour: the target’s own token; coloured: an accepted '
        f"draft of depth {keys}</p>"
    ]
    for task in dict.fromkeys(r["task"] for r in rows):
        mine = [r for r in rows if r["task"] == task]
        shown = max(mine, key=lambda r: r["tokens_per_call"])
        tabs = "".join(
            _tab(row, samples[row["key"]], f"texts-{task}", row is shown)
            for row in mine
        )
        parts.append(f'<h3>{escape(task)}</h3><div class="tabs">{tabs}</div>')
    return "".join(parts) + "</section>"


def _tab(row: dict[str, Any], samples: list, group: str, shown: bool) -> str:
    """A radio button, its label, and the panel that CSS shows while it is checked."""
    name, group = escape(row["key"]), escape(group)
    said = escape(f"{row['method']}, T = {row['temperature']:g}")
    body = "".join(sample(entry) for entry in samples[:TEXTS])
    return (
        f'<input type="radio" id="{name}" name="{group}"{" checked" if shown else ""}>'
        f'<label for="{name}">{said}</label><div class="panel">{body}</div>'
    )


def sample(entry: dict[str, Any]) -> str:
    """A text with the tokens that were drafts coloured by depth."""
    prompt = entry["prompt"]
    cut = "…" + prompt[-PROMPT:] if len(prompt) > PROMPT else prompt
    spans = []
    for piece, origin in zip(entry["pieces"], entry["origin"], strict=True):
        depth = min(origin, DEEPEST)
        said = escape(piece)
        spans.append(
            f'<span class="o{depth}" title="depth {origin}">{said}</span>'
            if depth
            else said
        )
    drafted = sum(o > 0 for o in entry["origin"])
    foot = (
        f"{len(entry['pieces'])} tokens in {entry['calls']} target calls, "
        f"{drafted} of them drafted"
    )
    if entry["loop_share"]:
        foot += f"; {100 * entry['loop_share']:.0f} % is one exact repetition"
    return (
        f'<pre><span class="prompt">{escape(cut)}</span>{"".join(spans)}</pre>'
        f'<p class="foot">{foot}</p>'
    )


def _trees(trees: dict[str, Any]) -> str:
    if not any(trees.values()):
        return ""
    parts = [
        "<section><h2>Token trees of a few rounds</h2><p>The root is the last "
        "committed token; the accepted path is highlighted, and the target’s own "
        "token, which ends every round, is outlined.</p>"
    ]
    for name, rounds in trees.items():
        parts.append(f"<h3>{escape(name)}</h3>")
        for i, entry in enumerate(rounds):
            drafts = sum(k > 0 for k in entry["kind"]) - 1
            said = f"round {i + 1}: {drafts} drafts, {len(entry['path'])} accepted"
            parts.append(_figure(said, svg.tree(entry)))
    return "".join(parts) + "</section>"


def _provenance(report: dict[str, Any]) -> str:
    said = "".join(f"<li>{escape(line)}</li>" for line in tables.provenance(report))
    config = escape(json.dumps(report["config"], indent=1))
    return (
        f"<section><h2>Provenance</h2><ul>{said}</ul>"
        f"<details><summary>configuration</summary><pre>{config}</pre></details></section>"
    )
