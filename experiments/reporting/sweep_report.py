"""Merge the reports of a sweep's points: report.json, report.md and report.html."""

import json
import os
from collections.abc import Sequence
from importlib import resources
from typing import Any

from experiments import run_folder
from experiments.reporting import html, report, tables
from models import storage
from models.errors import ConfigError


def write(workdir: str, points: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Write the merged report into `workdir`, from the reports of `(name, folder)`.

    `missing` names the points without a report.
    """
    place = storage.path(workdir)
    reports, missing = {}, []
    for name, folder in points:
        file = storage.path(folder) / "report.json"
        if not file.exists():
            missing.append(name)
            continue
        try:
            reports[name] = json.loads(file.read_text())
        except ValueError as error:
            raise ConfigError(
                f"{file} is no JSON ({error}): run its point again"
            ) from None
    rows = [{"point": n, **row} for n, r in reports.items() for row in r["rows"]]
    stage_tables = [
        {**table, "point": n}
        for n, r in reports.items()
        for table in r.get("tables", ())
    ]
    whole = {
        "points": {name: point["config"] for name, point in reports.items()},
        "missing": missing,
        "hardware": {name: point["hardware"] for name, point in reports.items()},
        "versions": {name: point["versions"] for name, point in reports.items()},
        "rows": rows,
        "tables": stage_tables,
    }
    run_folder.write(place / "report.json", whole)
    run_folder.text(place / "report.md", markdown(whole))
    run_folder.text(place / "report.html", page(whole, workdir, points))
    return whole


def title(whole: dict[str, Any]) -> str:
    """Count the runs that have a report."""
    return f"{len(whole['points'])} runs side by side"


def merged(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """Merge tables of one title and heads: `point` is their first column."""
    joined: list[dict[str, Any]] = []
    if whole["rows"]:
        lines = [[row["point"], *tables.cells(row)] for row in whole["rows"]]
        heads = ("point", *tables.HEADS)
        joined.append({"title": "Methods", "heads": heads, "lines": lines, "notes": ()})
    titles = dict.fromkeys((t["title"], tuple(t["heads"])) for t in whole["tables"])
    for name, heads in titles:
        alike = [
            t
            for t in whole["tables"]
            if (t["title"], tuple(t["heads"])) == (name, heads)
        ]
        lines = [[t["point"], *line] for t in alike for line in t["lines"]]
        notes = dict.fromkeys(note for t in alike for note in t["notes"])
        shown = ("point", *heads)
        joined.append({"title": name, "heads": shown, "lines": lines, "notes": notes})
    return joined


def markdown(whole: dict[str, Any]) -> str:
    """Write the merged report as Markdown: every table once, for all points."""
    parts = [f"# {title(whole)}\n"]
    if whole["missing"]:
        parts.append(f"Without a report so far: {', '.join(whole['missing'])}\n")
    for joined in merged(whole):
        parts += [
            f"## {joined['title']}\n",
            report.table(joined["heads"], joined["lines"]),
        ]
        if joined["notes"]:
            parts.append("\n".join(f"- {note}" for note in joined["notes"]) + "\n")
    return "\n".join(parts)


def page(whole: dict[str, Any], workdir: str, points: Sequence[tuple[str, str]]) -> str:
    """Render the merged report as one page, with a link to every point's own."""
    style = resources.files("experiments").joinpath("reporting", "page.css").read_text()
    machines = {h["processor"]: None for h in whole["hardware"].values() if h}
    own = [(name, storage.path(folder) / "report.html") for name, folder in points]
    links = [
        {
            "name": name,
            "page": os.path.relpath(str(file), workdir) if file.exists() else "",
        }
        for name, file in own
    ]
    return html.TEMPLATES.get_template("page_sweep.html.j2").render(
        title=title(whole),
        place=" · ".join(machines),
        style=style,
        points=links,
        tables=merged(whole),
    )
