"""Which of two methods gives more tokens a call, on the same prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.measurement import bootstrap

Row = dict[str, Any]


def table(
    rows: Sequence[Row],
    pairs: Sequence[tuple[str, str]],
    by: Mapping[str, str] = {"temperature": "T"},
    name: str = "method",
) -> dict[str, Any]:
    """A line for each pair (more, less) and each of the values of the fields `by`.

    A row has the tokens `new` and the target's `calls` of every prompt; rows that agree
    in `by` are taken together, those of tasks and seeds that both methods have. Another
    seed's texts are no further prompts: a prompt's seeds are drawn together. A pair
    without any is named below the table. `by` gives the columns' heads.
    """
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault((row[name], *(row[field] for field in by)), []).append(row)
    points = list(dict.fromkeys(key[1:] for key in found))
    lines: list[list[str]] = []
    apart = []  # pairs of which nothing can be said
    for more, less in pairs:
        before = len(lines)
        for point in points:
            own, other = (
                {_text(r): r for r in found.get((n, *point), ())} for n in (more, less)
            )
            both = [text for text in own if text in other]
            if not both:
                continue
            first, second = (
                _prompts([each[text] for text in both]) for each in (own, other)
            )
            gap, error = bootstrap.difference(first, second)
            verdict = "yes" if gap > 2 * error else "even"
            verdict = "no" if gap < -2 * error else verdict
            said = (f"{x:g}" if isinstance(x, float | int) else str(x) for x in point)
            cells = [f"{more} ≥ {less}", *said, f"{gap:+.2f} ± {error:.2f}", verdict]
            lines.append(cells)
        if len(lines) == before:
            apart.append(f"{more} ≥ {less}")
    notes = [
        "difference in tokens a call on the same prompts ± its bootstrap error; even: "
        "within two of them."
    ]
    if apart:
        notes.append(f"not compared, for want of rows in common: {', '.join(apart)}.")
    heads = ["direction", *by.values(), "difference", "holds"]
    return {"title": "Directions", "heads": heads, "lines": lines, "notes": notes}


def _prompts(rows: Sequence[Row]) -> list[Row]:
    """A row for each task: tokens and calls of its prompts over all seeds."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(row.get("task"), []).append(row)
    return [
        {name: np.sum([r[name] for r in seeds], 0) for name in ("new", "calls")}
        for seeds in found.values()
    ]


def _text(row: Row) -> tuple:
    return row.get("task"), row.get("seed")
