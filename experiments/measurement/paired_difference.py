"""Compare tokens a call of pairs of methods, on the same prompts."""

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
    """Make a line for each pair (more, less) and each value of the fields `by`.

    Rows that agree in `by` are pooled over the tasks and seeds that both methods have.
    A prompt's seeds are drawn together: another seed is not another prompt.

    Args:
        rows: with the new tokens `new` and target calls `calls`, lists by prompt.
        pairs: (more, less), names of methods.
        by: field of a row -> head of its column.
        name: field of a row that holds the method's name.

    Returns:
        The table; a note names the pairs without rows in common.
    """
    grouped: dict[tuple, list[Row]] = {}
    for row in rows:
        grouped.setdefault((row[name], *(row[field] for field in by)), []).append(row)
    points = list(dict.fromkeys(key[1:] for key in grouped))
    lines: list[list[str]] = []
    unmatched = []  # pairs without rows in common
    for more, less in pairs:
        before = len(lines)
        for point in points:
            rows_of_more, rows_of_less = (
                {_text(r): r for r in grouped.get((n, *point), ())}
                for n in (more, less)
            )
            shared = [text for text in rows_of_more if text in rows_of_less]
            if not shared:
                continue
            first, second = (
                _prompts([each[text] for text in shared])
                for each in (rows_of_more, rows_of_less)
            )
            gap, error = bootstrap.difference(first, second)
            verdict = "yes" if gap > 2 * error else "even"
            verdict = "no" if gap < -2 * error else verdict
            values = (f"{x:g}" if isinstance(x, float | int) else str(x) for x in point)
            cells = [f"{more} ≥ {less}", *values, f"{gap:+.2f} ± {error:.2f}", verdict]
            lines.append(cells)
        if len(lines) == before:
            unmatched.append(f"{more} ≥ {less}")
    notes = [
        "difference in tokens a call on the same prompts ± its bootstrap error; even: "
        "within two of them."
    ]
    if unmatched:
        notes.append(
            f"not compared, for want of rows in common: {', '.join(unmatched)}."
        )
    heads = ["direction", *by.values(), "difference", "holds"]
    return {"title": "Directions", "heads": heads, "lines": lines, "notes": notes}


def _prompts(rows: Sequence[Row]) -> list[Row]:
    """Sum tokens and calls of each prompt over seeds; a row for each task."""
    by_task: dict[Any, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.get("task"), []).append(row)
    return [
        {name: np.sum([r[name] for r in seeds], 0) for name in ("new", "calls")}
        for seeds in by_task.values()
    ]


def _text(row: Row) -> tuple:
    return row.get("task"), row.get("seed")
