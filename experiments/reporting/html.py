"""report.html: one self-contained page, readable on a phone, in light and dark.

`page.html.j2` and its macros hold the page's words and elements, `page.css` its style.
This module computes their contents; `page_figures` draws.
"""

import json
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from experiments import stage
from experiments.measurement import measured_row
from experiments.reporting import page_figures, tables, verdict

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
    rows = report["rows"]
    return TEMPLATES.get_template("page.html.j2").render(
        terms=tables.Unexplained(),
        title=tables.title(report),
        style=style,
        place=_place(report),
        headline=verdict.headline(rows),
        cards=_cards(rows),
        choices=_table(verdict.HEADS, verdict.advice(rows), names=3),
        choices_note=verdict.NOTE,
        results=_results(rows),
        notes=notes,
        charts=page_figures.rows(rows),
        curve=_curve(report),
        sections=_sections(report),
        tables=_tables(report),
        plots=[page_figures.stored(plot) for plot in report.get("plots", ())],
        deepest=DEEPEST,
        texts=_texts(rows, beside["samples"]),
        trees=page_figures.rounds(beside["trees"]),
        provenance=tables.provenance(report),
        commands=report.get("commands", ()),
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
    """Choose the figures below the headline."""
    cards = []

    def add(value: str, text: str, kind: str = "") -> None:
        cards.append({"value": value, "text": text, "kind": kind})

    drafting = [r for r in rows if r["method"] != verdict.PLAIN]
    claimed = [r for r in drafting if r["identical_to_plain"] is not None]
    if drafting:
        # Looping texts flatter every drafter: they are left out of the figures.
        judged = [
            r for r in drafting if r["loop_share"] < measured_row.LOOPING
        ] or drafting
        most = max(judged, key=lambda r: r["tokens_per_call"])
        what = f"{most['method']}, {verdict.label(most, rows)}"
        add(f"{most['tokens_per_call']:.2f}", f"most tokens a target call: {what}")
    if claimed:
        same = sum(r["identical_to_plain"] for r in claimed)
        ties = sum(r["ties"] for r in claimed)
        add(
            f"{same} of {len(claimed)}",
            f"rows with plain decoding’s text ({ties} rounding ties)",
            "good" if same == len(claimed) else "bad",
        )
    plain = [r for r in rows if r["method"] == verdict.PLAIN]
    if plain:
        speeds = verdict.own_speeds(plain)
        ends = "–".join(dict.fromkeys(f"{f(speeds):.2f}" for f in (min, max))) + "×"
        text = "plain decoding against itself, slowest and fastest time; 1.00× is right"
        add(ends, text, "bad" if verdict.strays(rows) else "")
        used = np.median([r["mbu"] for r in plain])
        text = "of the read bandwidth used by plain decoding (median row)"
        add(f"{100 * used:.0f} %", text)
    return cards


def _table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    marks: Mark = lambda i, j: "",
    names: int = 0,
) -> dict[str, Any]:
    """Make a table of cells (text, smaller text below it, CSS class).

    Args:
        heads: the text above each column.
        lines: the text of each row's cells; a number's interval follows in brackets.
        marks: (i, j) -> a further class of the cell in row i, column j.
        names: number of leading columns that hold words; the others hold numbers.
    """
    sides = ["" if j < names else "number" for j in range(len(heads))]
    rows = []
    for i, cells in enumerate(lines):
        made = []
        for j, cell in enumerate(cells):
            text, _, small = cell.partition(" (") if j >= names else (cell, "", "")
            made.append((text, small and f"({small}", f"{sides[j]} {marks(i, j)}"))
        rows.append(made)
    return {"heads": list(zip(heads, sides)), "rows": rows}


def _results(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a table for each task."""
    task_column = tables.HEADS.index("task")  # the heading of each table
    heads = [head for i, head in enumerate(tables.HEADS) if i != task_column]
    verdict_column = heads.index("identical")
    results = []
    for task in dict.fromkeys(r["task"] for r in rows):
        mine = [r for r in rows if r["task"] == task]

        def mark(i: int, j: int, mine: list = mine) -> str:
            kind = "plain " if mine[i]["method"] == verdict.PLAIN else ""
            if j == verdict_column:
                same = mine[i]["identical_to_plain"]
                kind += {True: "good", False: "bad", None: ""}[same]
            return kind

        whole = [tables.cells(row) for row in mine]
        lines = [[x for i, x in enumerate(c) if i != task_column] for c in whole]
        made = _table(heads, lines, mark, names=tables.WORDS - 1)
        results.append({"task": task, "table": made})
    return results


def _curve(report: dict[str, Any]) -> dict[str, Any] | None:
    """Draw call time by block width, with a table and advice."""
    if not report.get("curve"):
        return None
    target = next(iter(report["curve"].values()))
    return {
        "chart": page_figures.call_cost(report["curve"]),
        "table": _table(("nodes", "ms", "plain calls"), tables.call_times(target)),
        "advice": tables.advice(report),
    }


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


def _texts(rows: Sequence[dict[str, Any]], samples: dict[str, Any]) -> dict[str, Any]:
    """Choose a loop-free text of each method, in tabs for each task and temperature.

    All methods show the same prompt where one is loop-free for all. `looping` names
    what cannot be shown, since every text of it repeats itself.
    """
    shown = [r for r in rows if samples.get(r["key"])]
    groups, looping = [], []
    for group in verdict.texts(shown).values():
        name = verdict.label(group[0], shown)
        chosen = {
            row["key"]: [
                entry
                for entry in samples[row["key"]]
                if entry["loop_share"] < measured_row.LOOPING
            ]
            for row in group
            if verdict.width(row) == verdict.AUTO
            or verdict.twin(row, group, verdict.AUTO) is None
        }
        mine = [row for row in group if chosen.get(row["key"])]
        if not mine:
            looping.append(name)
            continue
        shared = set.intersection(
            *({entry["prompt"] for entry in chosen[row["key"]]} for row in mine)
        )
        best = max(mine, key=lambda row: row["tokens_per_call"])
        tabs = []
        for row in mine:
            entries = chosen[row["key"]]
            entry = next((e for e in entries if e["prompt"] in shared), entries[0])
            tabs.append(
                {
                    "key": row["key"],
                    "label": row["method"],
                    "shown": row is best,
                    "sample": sample(entry),
                }
            )
        groups.append({"name": name, "tabs": tabs})
    return {"groups": groups, "looping": looping}


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
