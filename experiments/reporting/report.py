"""The report of a run: report.json, report.md, report.html and figures/*.png."""

from collections.abc import Sequence
from typing import Any

from experiments import run_folder, stage
from experiments.reporting import html, plots, tables, verdict
from experiments.run_folder import RunFolder

# The fields of a row that every report has, in this order; more may follow.
ROW = (
    "method",
    "guarantee",
    "task",
    "temperature",
    "batch",
    "seed",
    "repeats",
    "prompts",
    "new_tokens",
    "target_calls",
    "tokens_per_call",
    "ci95",
    "accepted_by_depth",
    "loop_share",
    "tokens_per_s",
    "speedup",
    "mbu",
    "draft_share",
    "identical_to_plain",
    "compared_tokens",
    "ties",
    "compile_seconds",
    "expected",
    "tolerance",
)

NOTES = (
    "tokens/call: new tokens ÷ target calls, prefill not counted, the target's own "
    "token included (plain = 1.00); in brackets its 95 % bootstrap interval over "
    "prompts.",
    "speed-up: tokens/s of the decode loop against plain decoding, measured in turns "
    "in the same run; *with prefill*: the prompt's prefill included. Times are medians "
    "over repeats, in brackets with their quartiles where a row was timed repeatedly.",
    "draft share: time of a round with the target's call replaced by a constant ÷ time "
    "of a round.",
    "identical: every text equals plain decoding's under the same seed, or first "
    "differs at a rounding tie (plain's two best scores closer than "
    "64·eps·max|logit|); the rest of such a text is not compared. Drafters keep what "
    "they learn from prompt to prompt within a row and start empty in every repeat.",
)
CHOICES = "## What to use here\n"


def build(config: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Build the contents of report.json."""
    rows = []
    for row in found["rows"]:
        rows.append({**{name: row[name] for name in ROW}, **row})
    parts = stage.of({"config": config}).parts
    extra = ("bandwidth", "curve", "suggested", *parts, "tables", "plots", "commands")
    return {
        "hardware": found["hardware"],
        "versions": found["versions"],
        "config": config,
        "bandwidth_gb_s": found["bandwidth"]["gb_s"],
        "rows": rows,
        **{name: found[name] for name in extra if name in found},
    }


def write(
    place: RunFolder, config: dict[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
    """Write report.json, report.md, report.html and figures into the run's folder."""
    report = build(config, found)
    run_folder.write(place.path / "report.json", report)
    plots.draw(report, place.path / "figures")
    run_folder.text(place.path / "report.md", markdown(report))
    beside = {"samples": found.get("samples", {}), "trees": found.get("trees", {})}
    run_folder.text(place.path / "report.html", html.html(report, beside, NOTES))
    return report


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def markdown(report: dict[str, Any]) -> str:
    """Write the report as Markdown."""
    parts = [f"# {tables.title(report)}\n"]
    lines = tables.provenance(report)
    lines += [f"command: `{command}`" for command in report.get("commands", ())]
    parts.append("\n".join(f"- {line}" for line in lines) + "\n")
    headline = verdict.headline(report["rows"])
    if headline:
        parts.append(f"**{headline.value}**: {headline.text}\n")
        parts.append("\n".join(f"- {line}" for line in headline.lines) + "\n")
    choices = verdict.advice(report["rows"])
    if choices:
        parts += [CHOICES, table(verdict.HEADS, choices), f"- {verdict.NOTE}\n"]
    if report["rows"]:
        parts.append("## Methods\n")
        parts.append(table(tables.HEADS, [tables.cells(row) for row in report["rows"]]))
        notes = [*NOTES, *(term.text for term in tables.TERMS)]
        parts.append("\n".join(f"- {note}" for note in notes) + "\n")
        parts.append("![tokens per call](figures/tokens_per_call.png)\n")
    for section in stage.of(report).sections(report):
        parts.append(f"## {section.title}\n")
        parts.append(table(section.heads, section.lines))
        if section.notes:
            parts.append("\n".join(f"- {note}" for note in section.notes) + "\n")
    for stage_table in report.get("tables", ()):
        parts.append(f"## {stage_table['title']}\n")
        parts.append(table(stage_table["heads"], stage_table["lines"]))
        parts.append("\n".join(f"- {note}" for note in stage_table["notes"]) + "\n")
    for plot in report.get("plots", ()):
        parts.append(f"![{plot['title']}](figures/{plot['name']}.png)\n")
    if "curve" in report:
        parts.append("## Cost of a call by block width\n")
        for name, times in report["curve"].items():
            parts.append(f"{name}:\n")
            parts.append(
                table(("width", "ms", "plain calls"), tables.call_times(times))
            )
        parts += [f"- {line}" for line in tables.advice(report)]
    return "\n".join(parts).rstrip() + "\n"
