"""Merge the reports of a sweep's points."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import run_folder
from experiments.reporting import report, tables
from models.errors import ConfigError


def write(workdir: str | Path, points: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Write workdir/{report.json, report.md} from the reports of `(name, folder)`.

    `missing` names the points without a report.
    """
    workdir = Path(workdir)
    reports, missing = {}, []
    for name, folder in points:
        file = Path(folder) / "report.json"
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
    run_folder.write(workdir / "report.json", whole)
    run_folder.text(workdir / "report.md", markdown(whole))
    return whole


def markdown(whole: dict[str, Any]) -> str:
    """Write the merged report as Markdown: every table once, for all points."""
    parts = [f"# {len(whole['points'])} runs side by side\n"]
    if whole["missing"]:
        parts.append(f"Without a report so far: {', '.join(whole['missing'])}\n")
    if whole["rows"]:
        lines = [[row["point"], *tables.cells(row)] for row in whole["rows"]]
        parts += ["## Methods\n", report.table(("point", *tables.HEADS), lines)]
    titles = dict.fromkeys((t["title"], tuple(t["heads"])) for t in whole["tables"])
    for title, heads in titles:
        merged = [
            t
            for t in whole["tables"]
            if (t["title"], tuple(t["heads"])) == (title, heads)
        ]
        lines = [[t["point"], *line] for t in merged for line in t["lines"]]
        parts += [f"## {title}\n", report.table(("point", *heads), lines)]
        notes = dict.fromkeys(note for t in merged for note in t["notes"])
        parts.append("\n".join(f"- {note}" for note in notes) + "\n")
    return "\n".join(parts)
