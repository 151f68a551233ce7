"""Tables of what changes the text: its gain, its distance from plain decoding's, and
another method's gain at the same distance."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from experiments import console
from experiments.measurement import equal_quality
from experiments.measurement.equal_quality import Counts
from experiments.run_folder import RunFolder
from experiments.studies import common

NOTE = (
    "nats: of the text's tokens under the whole target; it is no measure of use. "
    "tokens before they part: from plain decoding's text."
)
Rows = Mapping[str, dict[str, Any]]


def read(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "figures.json").read_text())
    return found


def study(folder: RunFolder, trained: Any, tables: list, plots: list) -> dict[str, Any]:
    common.provenance(folder)
    for made in tables:
        for cells in made["lines"] if "better" in made["heads"] else ():
            said = f"{made['title']}: {' | '.join(cells)}"
            console.terminal().print(said, markup=False)
    return common.study(folder, trained=trained, tables=tables, plots=plots)


def table(rows: Rows, gain: str) -> dict[str, Any]:
    """The rows of `training.evaluation.lossy_quality`, in the form of the report."""
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
    """`own`'s settings against a baseline's, at equal distance from plain's text.

    `base` names the exact row, and what the baseline's rows begin with. Distance is
    the share of tokens after the texts have parted; or nats a token.
    """
    apart = lambda each: (
        [due - same for due, same in zip(each["due"], each["shared"])],
        each["due"],
    )
    worse = lambda each: (each["nats"], each["new"])
    tables = []
    for loss, said in ((apart, "tokens after they part"), (worse, "nats a token")):
        counts = {
            name: Counts(*gain(row["each"]), *loss(row["each"]))
            for name, row in rows.items()
        }
        mine = {n: c for n, c in counts.items() if n.startswith(own)}
        exact, start = base
        others = [c for n, c in counts.items() if n == exact or n.startswith(start)]
        found = equal_quality.against(mine, others)
        title = f"{own} against {start}, equal {said}"
        tables.append(equal_quality.table(title, said, found, unit, start))
    return tables
