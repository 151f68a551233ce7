"""Compare ways of ending draft chains by their cost in model calls.

The cost of a text is its target calls + c draft calls, c the ratio of the two models'
costs. Every way has a setting (a length, a threshold), and the best of several settings
is partly best by luck. So each half of the prompts is decoded with the setting that is
best on the other half.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError

Calls = Mapping[str, Mapping[str, Sequence[int]]]  # "fixed 4" -> each prompt's counts
DRAWS = 2000


class Way(NamedTuple):
    """One way of ending chains, at one cost of a draft call."""

    names: list[str]  # settings chosen for the even prompts, and for the odd ones
    tokens: np.ndarray  # [P]
    spent: np.ndarray  # [P]

    @property
    def rate(self) -> float:
        return float(self.tokens.sum() / self.spent.sum())


def chosen(calls: Calls, kind: str, cost: float) -> Way:
    """Choose the setting of `kind`, a name's first word, of each half by the other."""
    names = [name for name in calls if name.split()[0] == kind]
    if not names or len(calls[names[0]]["tokens"]) < 2:
        raise DataError(
            f"{len(names)} settings named {kind!r}: measure at least one, on 2 prompts"
        )
    tokens = np.array([calls[n]["tokens"] for n in names], float)
    drafts = np.array([calls[n]["draft"] for n in names], float)
    spent = np.array([calls[n]["target"] for n in names], float) + cost * drafts
    half = np.arange(tokens.shape[1]) % 2
    best = [
        int(np.argmax(tokens[:, half != i].sum(1) / spent[:, half != i].sum(1)))
        for i in (0, 1)
    ]
    which, at = np.asarray(best)[half], np.arange(len(half))
    return Way([names[i] for i in best], tokens[which, at], spent[which, at])


def gain(own: Way, other: Way) -> dict[str, Any]:
    """Compare tokens per cost of two ways: relative gain, 95 % interval, verdict."""
    count = len(own.tokens)
    at = np.random.default_rng(0).integers(count, size=(DRAWS, count))
    rates = [w.tokens[at].sum(1) / w.spent[at].sum(1) for w in (own, other)]
    low, high = np.quantile(rates[0] / rates[1] - 1, [0.025, 0.975])
    return {
        "gain": own.rate / other.rate - 1,
        "ci95": [float(low), float(high)],
        "better": verdict(low, high),
    }


def verdict(low: float, high: float) -> str:
    """Judge an interval: `yes` above 0, `no` below, else `even`."""
    return "yes" if low > 0 else "no" if high < 0 else "even"


def compared(
    calls: Calls, costs: Sequence[float], own: str, others: Sequence[str]
) -> list[dict[str, Any]]:
    """Compute all ways' rates at each cost, and the gain of `own` over `others`."""
    rows = []
    for cost in costs:
        ways = {kind: chosen(calls, kind, cost) for kind in (own, *others)}
        row: dict[str, Any] = {"cost": cost, "ways": {}, "gains": {}}
        for kind, way in ways.items():
            row["ways"][kind] = {"chosen": way.names, "tokens_per_cost": way.rate}
        for kind in others:
            row["gains"][kind] = gain(ways[own], ways[kind])
        rows.append(row)
    return rows


def table(
    rows: Sequence[dict[str, Any]], own: str, said: Mapping[str, str]
) -> dict[str, Any]:
    """Make the table of `compared`'s rows; `said` maps a kind to its name in words."""
    heads = ["c"]
    heads += [said[own], *(said[kind] for kind in rows[0]["gains"])]
    for kind in rows[0]["gains"]:
        heads += [f"gain over {said[kind]}", "better"]
    lines = []
    for row in rows:
        cells = [f"{row['cost']:g}"]
        for kind in (own, *row["gains"]):
            way = row["ways"][kind]
            names = list(dict.fromkeys(n.split()[-1] for n in way["chosen"]))
            cells.append(f"{way['tokens_per_cost']:.3f} ({', '.join(names)})")
        for each in row["gains"].values():
            low, high = (100 * x for x in each["ci95"])
            cells.append(f"{100 * each['gain']:+.1f} % ({low:+.1f} to {high:+.1f})")
            cells.append(each["better"])
        lines.append(cells)
    notes = [
        "Tokens ÷ (target calls + c draft calls); in brackets what was chosen: for "
        "each half of the prompts what is best on the other half.",
        "gain: with its 95 % bootstrap interval over prompts, the choice held; *even*: "
        "the interval holds 0.",
    ]
    for kind in rows[0]["gains"]:
        won = [f"{r['cost']:g}" for r in rows if r["gains"][kind]["better"] == "yes"]
        at = f"at c = {', '.join(won)}" if won else "at no c"
        notes.append(f"{said[own]} beats {said[kind]} {at} of {len(rows)} tried.")
    return {"title": "Prices", "heads": heads, "lines": lines, "notes": notes}


def plot(
    rows: Sequence[dict[str, Any]], own: str, said: Mapping[str, str]
) -> dict[str, Any]:
    """Plot rates by cost, a line a way."""
    costs = [row["cost"] for row in rows]
    series = [
        {
            "name": said[kind],
            "x": costs,
            "y": [row["ways"][kind]["tokens_per_cost"] for row in rows],
            "error": [0.0] * len(rows),
        }
        for kind in (own, *rows[0]["gains"])
    ]
    title = "tokens ÷ (target calls + c draft calls)"
    return {"name": "prices", "title": title, "x": "c", "series": series}
