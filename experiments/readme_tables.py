"""Write the README's tables: methods by family, and the best ones by workload.

python -m experiments.readme_tables --add=runs/quickstart/report.json --name=quickstart
python -m experiments.readme_tables --readme=README.md

The first command stores a report's figures in experiments/reports/<name>.json. The
second writes the README's tables: a short one of workloads, from all stored figures,
one of methods, from their cards, and one of cache policies. It also writes every row of
workloads to `workloads.md` beside the figures. A test compares all of them.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import decoding
from decoding import catalogue
from experiments import cache_table, console, run_folder
from experiments.measurement import measured_row
from experiments.reporting import verdict
from models.errors import ConfigError
from training import command_line

MODULE = "experiments.readme_tables"
REPORTS = pathlib.Path(__file__).parent / "reports"
WORKLOADS = "<!-- workloads: begin -->", "<!-- workloads: end -->"
METHODS = "<!-- methods: begin -->", "<!-- methods: end -->"
POLICIES = "<!-- policies: begin -->", "<!-- policies: end -->"
PLAIN = "plain"
HEADS = ("workload", "T", "fastest", "most tokens a call", "next", "report")
SHORT = ("workload", "fastest", "most tokens a call", "report")
USUAL = (0.8, None)  # temperatures of the short table; None: recorded texts
FEW = 4  # tasks of a report that the short table names one by one
WHOLE = """# Which method for which workload: every row

`python -m experiments.readme_tables --readme=README.md` writes this page from the
figures that the reports keep. *Fastest* is judged by the clock against plain decoding,
lossless methods only. Greedy text of small models often loops, which every drafter
copies: the share is beside the workload. Blocks are not equal: wide ones have more
tokens a call. `easyspec` with `tiny-draft` drafts as `model_chain` does: between these
two noise decides.

"""

# Fields stored of a row; a field that a replay lacks is None.
FIELDS = (
    "method",
    "width",
    "guarantee",
    "task",
    "temperature",
    "prompts",
    "repeats",
    "tokens_per_call",
    "ci95",
    "tokens_per_call_loop_free",
    "speedup",
    "loop_share",
    "identical_to_plain",
)


def keep(report: dict[str, Any], name: str, workload: str = "") -> dict[str, Any]:
    """Select the figures of a report.json that the tables need, and their origin."""
    rows = [*report["rows"], *report.get("replay", ())]
    if not rows:
        raise ConfigError(
            "the report has no rows of methods: use evaluate's or replay's"
        )
    return {
        "name": name,
        "workload": workload,  # of rows without a task
        "model": report["config"].get("model", "recorded texts"),
        "hardware": report["hardware"],
        "versions": report["versions"],
        "rows": [{field: row.get(field) for field in FIELDS} for row in rows],
    }


def kept(folder: pathlib.Path = REPORTS) -> list[dict[str, Any]]:
    """Read all stored figures with a `workload`, by name; skip other JSON files."""
    reports = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [report for report in reports if "workload" in report]


def table(reports: Sequence[dict[str, Any]]) -> str:
    """Write one Markdown row per workload and temperature of every report."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for report in reports:
        for cells in _workloads(report):
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def short(reports: Sequence[dict[str, Any]]) -> str:
    """Write the README's rows: T = 0.8 or recorded texts; many tasks as their mean."""
    lines = ["| " + " | ".join(SHORT) + " |", "|" + "---|" * len(SHORT)]
    for report in reports:
        tasks = dict.fromkeys(row["task"] for row in report["rows"])
        rows = [row for row in report["rows"] if row["temperature"] in USUAL]
        if len(tasks) > FEW:
            rows = _means(rows, f"{report['name']}, mean of {len(tasks)} tasks")
        folder = "experiments/reports/"
        for name, _, fast, most, _, link in _workloads(
            {**report, "rows": rows}, folder
        ):
            lines.append("| " + " | ".join((name, fast, most, link)) + " |")
    return "\n".join(lines)


def _means(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Average the rows of each method and width over tasks, without an interval."""
    averages = []
    kind = lambda row: (row["method"], verdict.width(row))
    for name_and_width in dict.fromkeys(map(kind, rows)):
        mine = [row for row in rows if kind(row) == name_and_width]
        mean = lambda field, mine=mine: statistics.mean(row[field] for row in mine)
        averages.append(
            {
                **mine[0],
                "task": name,
                "tokens_per_call": mean("tokens_per_call"),
                "ci95": None,
                "speedup": mean("speedup"),
                "loop_share": mean("loop_share"),
                "identical_to_plain": all(r["identical_to_plain"] for r in mine),
            }
        )
    return averages


def _workloads(report: dict[str, Any], folder: str = "") -> Iterator[list[str]]:
    """Yield the cells of every workload with at least two methods."""
    link = f"[{report['name']}]({folder}{report['name']}.md)"
    law = lambda row: (row["task"], row["temperature"])
    for task, t in dict.fromkeys(map(law, report["rows"])):
        rows = [r for r in report["rows"] if law(r) == (task, t)]
        # A LOSSY method decodes another text: its speed is not comparable.
        rows = [r for r in rows if r["guarantee"] != "LOSSY" and r["method"] != PLAIN]
        rows = [r for r in rows if r["identical_to_plain"] is not False]
        if len({r["method"] for r in rows}) < 2:
            continue
        best, second = _most_tokens(rows)
        workload = task or report["workload"] or report["name"].replace("_", " ")
        share = max(r["loop_share"] or 0.0 for r in rows)
        if share >= measured_row.LOOPING:
            workload += f" ({100 * share:.0f} % of it loops)"
        label = "recorded" if t is None else f"{t:g}"
        yield [workload, label, _fastest(rows), _tokens(best), _tokens(second), link]


def _fastest(rows: Sequence[dict[str, Any]]) -> str:
    """Name the fastest method with its speed-up; `–` if none was timed."""
    timed = [r for r in rows if r["speedup"] is not None]
    if not timed:
        return "–"
    best = max(timed, key=lambda r: r["speedup"])
    width = ", auto" if verdict.width(best) == verdict.AUTO else ""
    text = f"`{best['method']}`{width} {best['speedup']:.2f}×"
    return text if best["speedup"] > 1 else f"plain decoding ({text})"


def _most_tokens(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choose the two methods with the most tokens a call, each at its best width."""
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda r: -r["tokens_per_call"]):
        best.setdefault(row["method"], row)
    return list(best.values())[:2]


def _tokens(row: dict[str, Any]) -> str:
    interval = "" if row["ci95"] is None else " ({:.2f}–{:.2f})".format(*row["ci95"])
    return f"`{row['method']}` {row['tokens_per_call']:.2f}{interval}"


def method_table() -> str:
    """Write one Markdown row per method file, grouped by folder and family."""
    lines = ["| family | method | guarantee | source |", "|---|---|---|---|"]
    group = None
    for name, family, guarantee, paper in decoding.methods():
        if catalogue.is_outside(name):
            continue  # another package's
        place = (name.split("/")[0], family)
        label = family if place != group else ""
        link = f"[`{name}`](decoding/{name}.py)"
        lines.append(f"| {label} | {link} | {guarantee} | {paper} |")
        group = place
    return "\n".join(lines)


def fill(text: str, reports: Sequence[dict[str, Any]]) -> str:
    """Return `text` with all tables between their markers."""
    text = _between(text, WORKLOADS, short(reports))
    text = _between(text, METHODS, method_table())
    return _between(text, POLICIES, cache_table.table())


def _between(text: str, markers: tuple[str, str], table: str) -> str:
    """Replace the text between two markers by a table."""
    before, begin, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise ConfigError(
            f"--readme lacks the lines {' and '.join(markers)}: add them around a table"
        )
    return f"{before}{begin}\n{table}\n{end}{after}"


def body(arguments: list[str]) -> int:
    """Store a report's figures, write the tables, or print one."""
    parser = command_line.Parser(MODULE, __doc__)
    parser.add_argument("--add", type=pathlib.Path, help="a report.json to store")
    parser.add_argument("--name", help="of its report in experiments/reports")
    parser.add_argument(
        "--workload", default="", help="the records of a replay, in words"
    )
    parser.add_argument("--readme", type=pathlib.Path, help="rewrite its tables")
    parser.add_argument("--reports", type=pathlib.Path, default=REPORTS)
    options = parser.read(arguments)
    if options.add:
        if not options.name:
            raise ConfigError(f"--add={options.add} needs the --name of its report")
        report = json.loads(options.add.read_text())
        figures = keep(report, options.name, options.workload)
        file = "_".join([options.name, *options.workload.split()])
        run_folder.write(options.reports / f"{file}.json", figures)
    if options.readme:
        text = fill(options.readme.read_text(), kept(options.reports))
        run_folder.text(options.readme, text)
        whole = WHOLE + table(kept(options.reports)) + "\n"
        run_folder.text(options.reports / "workloads.md", whole)
    if not options.add and not options.readme:
        console.terminal().print(table(kept(options.reports)), markup=False)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, argv)


if __name__ == "__main__":
    sys.exit(main())
