"""Judge the times of a run: what was fastest, whether to trust it, and why not.

A row's `width` is "auto" (a controller sets the block of every round) or "paper" (the
size that the method's paper uses). Rows of older runs have no such field: "paper".
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.measurement import measured_row

AUTO, PAPER = "auto", "paper"
PLAIN = "plain"
STRAY = 0.1  # plain decoding's own speed-up is at most this far from 1.0
LISTED = 3  # rows named in one sentence
HEADS = (
    "text",
    "use",
    "fastest drafter",
    "speed-up",
    "paper’s width",
    "tokens a round",
    "cost a round",
    "loop share",
)
NOTE = (
    "use: plain decoding wherever no drafter’s 95 % interval lies above 1.00×. cost a "
    "round: its time in rounds of plain decoding. A drafter pays where a round commits "
    "more tokens than it costs."
)
Row = Mapping[str, Any]


class Headline(NamedTuple):
    """The first words of a report.

    Attributes:
        value: a few words in large type.
        text: the row that they are about, or a sentence.
        lines: sentences below it.
        kind: "good" where something beat plain decoding, "bad" where times are not to
            be trusted, else "".
    """

    value: str
    text: str
    lines: Sequence[str]
    kind: str


def width(row: Row) -> str:
    """Return a row's kind of block width, `AUTO` or `PAPER`."""
    return row.get("width") or PAPER


def quartiles(row: Row, field: str) -> tuple[float, float] | None:
    """Return the quartiles of a row's times over repeats.

    None where there is one repeat, or where an older run stored medians alone.
    """
    values = row.get("by_repeat", {}).get(field, ())
    if len(values) < 2:
        return None
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def texts(rows: Sequence[Row]) -> dict[tuple, list[Row]]:
    """Group rows by the texts that they decode, in order.

    A key is (task, temperature, batch, seed).
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        key = (row["task"], row["temperature"], row["batch"], row["seed"])
        groups.setdefault(key, []).append(row)
    return groups


def label(row: Row, rows: Sequence[Row]) -> str:
    """Name the texts of a row; batch and seed where `rows` have several."""
    parts = [row["task"], f"T = {row['temperature']:g}"]
    parts += [
        f"{field} {row[field]}"
        for field in ("batch", "seed")
        if len({other[field] for other in rows}) > 1
    ]
    return ", ".join(parts)


def strays(rows: Sequence[Row]) -> list[Row]:
    """List plain decoding's rows whose own speed-up is not 1.0 to within `STRAY`."""
    plain = [row for row in rows if row["method"] == PLAIN]
    return [row for row in plain if abs(row["speedup"] - 1) > STRAY]


def warning(rows: Sequence[Row]) -> str:
    """Explain why times are not to be trusted; "" where they are."""
    found = strays(rows)
    if not found:
        return ""
    worst = sorted(found, key=lambda row: -abs(row["speedup"] - 1))
    cases = [f"{r['speedup']:.2f}× on {label(r, rows)}" for r in worst[:LISTED]]
    more = f" and {len(worst) - LISTED} more" if len(worst) > LISTED else ""
    return (
        f"Plain decoding, timed against itself, came to {'; '.join(cases)}{more}: over "
        f"{100 * STRAY:.0f} % from 1.00×. Another program on the machine would explain "
        "it."
    )


def own_speeds(rows: Sequence[Row]) -> list[float]:
    """Return plain decoding's speed-up over itself, in all repeats of all rows.

    An older run's rows give their medians.
    """
    plain = [row for row in rows if row["method"] == PLAIN]
    return [
        x for r in plain for x in r.get("by_repeat", {}).get("speedup", [r["speedup"]])
    ]


def own_spread(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return the quartiles of `own_speeds`; None without two values."""
    values = own_speeds(rows)
    if len(values) < 2:
        return None
    low, high = np.quantile(values, (0.25, 0.75))
    return float(low), float(high)


def beats(row: Row) -> bool:
    """Test whether a row is faster than plain decoding, its whole interval included."""
    low = (row.get("speedup_ci95") or [row["speedup"]])[0]
    return row["speedup"] > 1 and low > 1


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Select the drafters' rows that may be called faster than plain decoding.

    A row with a wrong text is left out. So is a LOSSY one, which decodes another text.
    """
    return [
        row
        for row in rows
        if row["method"] != PLAIN
        and row["guarantee"] != "LOSSY"
        and row["identical_to_plain"] is not False
    ]


def best(rows: Sequence[Row]) -> Row:
    """Choose the fastest row, of those that beat plain decoding if any does.

    Rows of automatic width come first: one at the paper's width is chosen where no
    other beats plain decoding, or where there is no other. `comparable(rows)` must not
    be empty.
    """
    candidates = comparable(rows)
    automatic = [row for row in candidates if width(row) == AUTO]
    for group in (automatic, candidates):
        winners = [row for row in group if beats(row)]
        if winners:
            return max(winners, key=lambda row: row["speedup"])
    return max(automatic or candidates, key=lambda row: row["speedup"])


def twin(row: Row, rows: Sequence[Row], kind: str) -> Row | None:
    """Find the row of the same method and texts at another kind of width."""
    fields = ("method", "task", "temperature", "batch", "seed")
    same = (r for r in rows if all(r[name] == row[name] for name in fields))
    return next((r for r in same if width(r) == kind), None)


def widest(rows: Sequence[Row]) -> list[Row]:
    """Keep one row of each method and text: at the paper's width where there is one.

    Acceptance by depth is whole there; an automatic width stops before it falls.
    """
    return [
        row for row in rows if width(row) == PAPER or twin(row, rows, PAPER) is None
    ]


def interval(row: Row) -> str:
    """Format a row's speed-up with its 95 % interval, where one is known."""
    text = f"{row['speedup']:.2f}×"
    ends = row.get("speedup_ci95")
    return f"{text} ({ends[0]:.2f}–{ends[1]:.2f})" if ends else text


def round_cost(row: Row) -> float:
    """Compute the time of a round, in rounds of plain decoding.

    A round commits `tokens_per_call` tokens, a plain one 1.
    """
    return row["tokens_per_call"] / row["speedup"]


def reason(row: Row) -> str:
    """Explain a row's speed by its measured parts: what a round costs and commits."""
    cost = round_cost(row)
    if width(row) == AUTO:
        block = f"blocks of {1 + row['drafted_per_call']:.1f} nodes on average"
    else:
        block = f"a block of {row['nodes']} nodes"
    whole = (
        f"A round of {row['method']} commits {row['tokens_per_call']:.2f} tokens and "
        f"takes as long as {cost:.2f} rounds of plain decoding"
    )
    if row["draft_share"] is None:
        return f"{whole}, with {block}."
    outside = min(row["draft_share"], 1.0) * cost
    return (
        f"{whole}: {cost - outside:.2f} "
        f"for the target’s call with {block}, {outside:.2f} for drafting and the rest."
    )


def headline(rows: Sequence[Row]) -> Headline | None:
    """Write the report's first words; None of a report without a drafter's row."""
    if all(row["method"] == PLAIN for row in rows):
        return None
    if said := warning(rows):
        return Headline(
            "Times are not to be trusted",
            said,
            ["This page gives no advice. Run again on a quiet machine."],
            "bad",
        )
    judged = comparable(rows)
    if not judged:
        return Headline(
            "No speed-up to state",
            "Every drafter here is LOSSY or wrote a wrong text.",
            ["A speed-up is stated of plain decoding’s own texts alone."],
            "",
        )
    # Looping texts flatter every drafter: they count only where no other text gains.
    loop_free = [r for r in judged if r["loop_share"] < measured_row.LOOPING]
    for pool in filter(None, (loop_free, judged)):
        row = best(pool)
        if beats(row):
            return _success(row, rows, pool, loop_free)
    return _failure(best(loop_free or judged), rows, loop_free or judged)


def _success(
    row: Row, rows: Sequence[Row], pool: Sequence[Row], loop_free: Sequence[Row]
) -> Headline:
    """Write the headline of a row that beats plain decoding."""
    lines = [_certainty(row)]
    other = twin(row, rows, PAPER)
    if width(row) == AUTO and other is not None:
        lines.append(f"At the paper’s own width it reaches {interval(other)}.")
    automatic = [r for r in comparable(rows) if width(r) == AUTO]
    if width(row) == PAPER and automatic:
        some = any(map(beats, automatic))
        subject = "On looping texts alone, a" if some else "No"
        lines.append(f"{subject} row of automatic width beat plain decoding.")
    value, kind = f"{row['speedup']:.2f}× plain decoding", "good"
    if row["loop_share"] >= measured_row.LOOPING:
        value, kind = f"{row['speedup']:.2f}×, on looping texts alone", ""
        lines.append(f"{100 * row['loop_share']:.0f} % of this row’s texts loop.")
        if loop_free:
            slow = best(loop_free)
            lines += [
                "On texts that are not looping nothing beat plain decoding: the "
                f"fastest row there, {_what(slow, rows)}, reaches {interval(slow)}.",
                reason(slow),
            ]
    return Headline(
        value, f"{_what(row, rows)}.", [*lines, *_context(row, rows, pool)], kind
    )


def _failure(row: Row, rows: Sequence[Row], pool: Sequence[Row]) -> Headline:
    """Write the headline of a run in which nothing beat plain decoding."""
    lines = [reason(row), _certainty(row)]
    if row["speedup"] > 1:
        lines.append(
            "The interval reaches down to 1.00×: noise would explain the gain."
        )
    return Headline(
        "Nothing beat plain decoding here",
        f"The fastest row reaches {row['speedup']:.2f}×: {_what(row, rows)}.",
        [*lines, *_context(row, rows, pool)],
        "",
    )


def _what(row: Row, rows: Sequence[Row]) -> str:
    kind = "width auto" if width(row) == AUTO else "at the paper’s own width"
    return f"{row['method']} on {label(row, rows)}, {kind}"


def _certainty(row: Row) -> str:
    """State a row's interval and how it is computed."""
    ends, repeats = row.get("speedup_ci95"), row["repeats"]
    if not ends:
        if "by_repeat" in row:
            return "One prompt, timed once: no interval can be stated."
        return "No interval: an older run, which stored medians alone."
    over = "prompts and repeats" if repeats > 1 else "prompts, each timed once"
    return f"95 % interval {ends[0]:.2f}–{ends[1]:.2f}, by bootstrap over {over}."


def _context(row: Row, rows: Sequence[Row], pool: Sequence[Row]) -> list[str]:
    """State how many rows were compared, and plain decoding's own spread."""
    number = sum(width(other) == width(row) for other in pool)
    kind = "automatic width" if width(row) == AUTO else "the paper’s width"
    text = f"The fastest of {number} rows of {kind}"
    if len(pool) < len(comparable(rows)):
        text += "; those with looping texts are left out"
    lines = [f"{text}."]
    if all(width(other) == PAPER for other in rows):
        lines[0] += " This run has no row of automatic width."
    spread = own_spread(rows)
    if spread is None:
        return [*lines, "Plain decoding was not timed against itself repeatedly."]
    low, high = spread
    return [
        *lines,
        f"Plain decoding against itself: {low:.2f}–{high:.2f}× (quartiles).",
    ]


def advice(rows: Sequence[Row]) -> list[list[str]]:
    """Make a line of `HEADS` for each kind of text: what to decode it with.

    [] where times are not to be trusted.
    """
    if strays(rows):
        return []
    lines = []
    for group in texts(rows).values():
        if not comparable(group):
            continue
        row = best(group)
        name = f"{row['method']}, {width(row)}"
        other = twin(row, group, PAPER)
        lines.append(
            [
                label(row, rows),
                name if beats(row) else PLAIN,
                name,
                interval(row),
                "–" if other is None else f"{other['speedup']:.2f}×",
                f"{row['tokens_per_call']:.2f}",
                f"{round_cost(row):.2f}",
                f"{100 * row['loop_share']:.0f} %",
            ]
        )
    return lines
