"""Tables of lossy methods: gain, distance from plain decoding's text, and a baseline's
gain at the same distance."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments import console
from experiments.measurement import equal_quality
from experiments.measurement.equal_quality import Counts
from experiments.run_folder import RunFolder
from experiments.studies import common
from training.runs import scaffold

NOTE = (
    "nats: of the text's tokens under the whole target; it is no measure of use. "
    "tokens before they part: from plain decoding's text."
)
Rows = Mapping[str, dict[str, Any]]


def read(folder: RunFolder) -> dict[str, Any]:
    """Read the figures of the training in a run's folder."""
    return scaffold.read_figures(folder.path)


def study(folder: RunFolder, trained: Any, tables: list, plots: list) -> dict[str, Any]:
    """Make the stage's report, and print the tables that compare gains."""
    common.provenance(folder)
    for comparison in tables:
        for cells in comparison["lines"] if "better" in comparison["heads"] else ():
            line = f"{comparison['title']}: {' | '.join(cells)}"
            console.terminal().print(line, markup=False)
    return common.study(folder, trained=trained, tables=tables, plots=plots)


def table(rows: Rows, gain: str) -> dict[str, Any]:
    """Tabulate rows of `training.evaluation.lossy_quality`; `gain` is a field."""
    heads = ["", gain.replace("_", " "), "nats a token"]
    heads += ["texts as plain's", "tokens before they part"]
    lines = [
        [
            label,
            f"{row[gain]:.2f}",
            f"{row['nats']:.3f}",
            f"{100 * row['same']:.0f} %",
            f"{100 * row['shared']:.0f} %",
        ]
        for label, row in rows.items()
    ]
    return {"title": "Texts", "heads": heads, "lines": lines, "notes": [NOTE]}


def matched(
    rows: Rows,
    own: str,
    base: tuple[str, str],
    gain: Callable[[dict[str, Any]], tuple[list, list]],
    unit: str,
) -> list[dict[str, Any]]:
    """Compare `own`'s settings with a baseline's, at equal distance from plain's text.

    Distance is the share of tokens after the texts have parted; or nats a token.

    Args:
        rows: rows of `training.evaluation.lossy_quality` by label.
        own: the first letters of the labels of the method's rows.
        base: label of the exact row, and first letters of the baseline's labels.
        gain: row's `each` -> (gained, paid) by prompt.
        unit: the gain in words, for the report.

    Returns:
        A table for each measure of distance.
    """
    apart = lambda each: (
        [due - same for due, same in zip(each["due"], each["shared"])],
        each["due"],
    )
    worse = lambda each: (each["nats"], each["new"])
    tables = []
    for loss, measure in ((apart, "tokens after they part"), (worse, "nats a token")):
        counts = {
            name: Counts(*gain(row["each"]), *loss(row["each"]))
            for name, row in rows.items()
        }
        mine = {n: c for n, c in counts.items() if n.startswith(own)}
        exact, start = base
        others = [c for n, c in counts.items() if n == exact or n.startswith(start)]
        gains = equal_quality.against(mine, others)
        title = f"{own} against {start}, equal {measure}"
        tables.append(equal_quality.table(title, measure, gains, unit, start))
    return tables
