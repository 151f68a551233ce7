"""Tables of the study of constrained decoding, made from its stored rows."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.studies import constraint_verdicts
from experiments.studies.constraint_costs import DEPTH
from experiments.studies.constraint_verdicts import ACCEPTED, REFUSED, UNKNOWN
from experiments.studies.search_tables import table

Row = dict[str, Any]

SECONDS, MEMORY = 5.0, 1024.0  # limits of a schema: s, MiB
EXAMPLES = 3  # names beside a reason


def is_held(row: Row) -> bool:
    """Return whether a schema has a byte machine that fits the device's stack."""
    return "states" in row and row["need"] <= DEPTH


def is_accepted(row: Row) -> bool:
    """Return whether llguidance accepts a schema."""
    return "their_refusal" not in row


def is_alike(row: Row) -> bool:
    """Return whether all verdicts are llguidance's."""
    return row["ours"] == row["theirs"]


def count(rows: Iterable[Row], name: str, expected: str, verdict: str) -> int:
    """Count instances that are `expected` and have a `verdict` by `name`."""
    return sum(
        pair == (expected, verdict)
        for row in rows
        for pair in zip(row["expected"], row[name])
    )


def quantiles(values: Sequence[float], form: str, at: Sequence[float]) -> list[str]:
    """Write quantiles; 1 is the most. Without values all are –."""
    finite = [x for x in values if np.isfinite(x)]
    if not finite:
        return ["–"] * len(at)
    return [format(float(np.quantile(finite, q)), form) for q in at]


def share(part: int, whole: int) -> str:
    """Write a count with its share."""
    return f"{part:,} ({part / whole:.2%})" if whole else "–"


def verdict_summary(rows: Sequence[Row]) -> Row:
    """Return the figures that the bars are about."""
    accepted = [row for row in rows if is_accepted(row)]
    both = [row for row in accepted if is_held(row)]
    judged = [row for row in both if row["expected"]]
    return {
        "schemas": len(rows),
        "held": sum(map(is_held, rows)),
        "llguidance_accepts": len(accepted),
        "held_of_llguidance": len(both),
        "with_instances": len(judged),
        "alike": sum(map(is_alike, judged)),
        "invalid_accepted": count(rows, "ours", REFUSED, ACCEPTED),
        "invalid_accepted_llguidance": count(rows, "theirs", REFUSED, ACCEPTED),
        "valid_refused": count(rows, "ours", ACCEPTED, REFUSED),
        "valid_refused_llguidance": count(rows, "theirs", ACCEPTED, REFUSED),
        "over_seconds": sum(row["seconds"] > SECONDS for row in rows),
        "over_memory": sum(row["mib"] > MEMORY for row in rows),
        "stopped": sum("stopped" in row for row in rows),
    }


def of_verdicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Make the tables of all schemas: by subset, refusals, times, differences."""
    return [_subsets(rows), _refusals(rows), _compile(rows), *_differences(rows)]


def _subsets(rows: Sequence[Row]) -> dict[str, Any]:
    groups: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row["subset"]].append(row)
    lines = []
    for name, part in [*sorted(groups.items()), ("all", list(rows))]:
        x = verdict_summary(part)
        accepted = x["llguidance_accepts"]
        lines.append(
            [
                name,
                f"{len(part):,}",
                share(x["held"], len(part)),
                share(accepted, len(part)),
                share(x["held_of_llguidance"], accepted),
                share(x["alike"], x["with_instances"]),
                f"{x['valid_refused']:,}; {x['valid_refused_llguidance']:,}",
                f"{x['invalid_accepted']:,}; {x['invalid_accepted_llguidance']:,}",
            ]
        )
    heads = (
        *("subset", "schemas", "held", "llguidance accepts", "of these held"),
        *("verdicts alike", "valid refused", "invalid accepted"),
    )
    return table("Schemas and verdicts", heads, lines, SUBSETS)


def _refusals(rows: Sequence[Row]) -> dict[str, Any]:
    groups: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        if "refused" in row or "stopped" in row:
            words = row.get("stopped") or constraint_verdicts.reason(row["refused"])
            groups[words].append(row)
        elif not is_held(row):
            groups[f"more than {DEPTH} calling states"].append(row)
    lines = []
    for name, part in sorted(groups.items(), key=lambda x: -len(x[1])):
        theirs = sum(map(is_accepted, part))
        names = ", ".join(row["name"] for row in part[:EXAMPLES])
        lines.append([name, f"{len(part)}", f"{theirs}", names])
    heads = ("reason", "schemas", "accepted by llguidance", "such as")
    return table("Refusals by keyword", heads, lines or [["none", "0", "0", ""]])


def _compile(rows: Sequence[Row]) -> dict[str, Any]:
    built = [row for row in rows if "states" in row]
    theirs = [1e3 * row["their_seconds"] for row in rows if "their_seconds" in row]
    at = (0.5, 0.9, 0.95, 0.99, 1)
    lines = [
        ["ms", *quantiles([1e3 * row["seconds"] for row in built], ".1f", at)],
        ["ms, llguidance", *quantiles(theirs, ".1f", at)],
        ["states", *quantiles([row["states"] for row in built], ".0f", at)],
        ["peak of memory, MiB", *quantiles([row["mib"] for row in built], ".1f", at)],
    ]
    slow = [row for row in rows if row["seconds"] > SECONDS]
    large = [row for row in rows if row["mib"] > MEMORY]
    notes = [
        f"Schemas over {SECONDS:g} s: {_names(slow)}. Over {MEMORY:g} MiB: "
        f"{_names(large)}. Stopped: {_names([r for r in rows if 'stopped' in r])}. ms: "
        "of the processor."
    ]
    heads = ("byte machines", "p50", "p90", "p95", "p99", "most")
    return table("Compiling to byte machines", heads, lines, *notes)


def _names(rows: Sequence[Row]) -> str:
    names = ", ".join(row["name"] for row in rows[:20])
    return f"{len(rows)} ({names})" if rows else "none"


def _differences(rows: Sequence[Row]) -> list[dict[str, Any]]:
    both = [row for row in rows if is_accepted(row) and is_held(row)]
    differing = [row for row in both if not is_alike(row)]
    refused = [row for row in rows if count([row], "ours", ACCEPTED, REFUSED)]
    wrong = [row for row in rows if count([row], "ours", REFUSED, ACCEPTED)]
    lines = []
    every = collections.Counter(x for row in rows for x in row["features"])
    groups = [
        collections.Counter(x for row in part for x in row["features"])
        for part in (differing, refused, wrong)
    ]
    for name in sorted(every, key=lambda x: (-groups[0][x], -groups[1][x], x)):
        if any(group[name] for group in groups):
            lines.append([name, f"{every[name]}", *(f"{g[name]}" for g in groups)])
    right = sum(
        ours == expected
        for row in differing
        for ours, theirs, expected in zip(row["ours"], row["theirs"], row["expected"])
        if ours != theirs
    )
    total = sum(
        ours != theirs
        for row in differing
        for ours, theirs in zip(row["ours"], row["theirs"])
    )
    heads = ("keyword", "schemas", "unlike llguidance", "valid refused")
    notes = [
        f"Schemas that have the keyword and a miss. Unlike llguidance: {len(differing)}"
        f" schemas, {total} instances, ours right on {right}: {_names(differing)}. "
        f"Invalid accepted: {_names(wrong)}."
    ]
    lines = lines or [["none", *["0"] * 4]]
    return [table("Misses by keyword", (*heads, "invalid accepted"), lines, *notes)]


def of_costs(costs: Mapping[int, tuple[Row, list[Row]]]) -> list[dict[str, Any]]:
    """Make the tables of costs: set-up and compiling, sizes, masks, by vocabulary."""
    compiling, sizes, masks = [], [], []
    for size, (start, rows) in costs.items():
        built = [row for row in rows if "states" in row]
        name = f"{size:,}"
        times = (("cold", 1e3), ("machine", 1e3), ("warm", 1e3), ("their_cold", 1e3))
        compiling.append(
            [
                name,
                f"{start['scratch']:.2f}",
                f"{start['disk']:.2f}",
                f"{len(built)} of {len(rows)}",
                *(_three(built, field, scale) for field, scale in times),
            ]
        )
        sizes.append(
            [
                name,
                *quantiles([row["states"] for row in built], ".0f", (0.5, 0.9, 1)),
                *quantiles(
                    [row["device_bytes"] / 1024 for row in built], ".0f", (0.5, 0.9, 1)
                ),
                *quantiles(
                    [row["disk_bytes"] / 1024 for row in built], ".0f", (0.5, 0.9, 1)
                ),
            ]
        )
        timed = [row for row in rows if "mask" in row]
        bars = [row["mask"] - 15 - 1.5 * row["logsumexp"] for row in timed]
        masks.append(
            [
                name,
                f"{len(timed)}",
                *(_three(timed, field, 1) for field in ("mask", "logsumexp")),
                f"{sum(x <= 0 for x in bars)} of {len(bars)}",
                *(_three(timed, f, 1) for f in ("advance", "their_mask")),
                _three(timed, "their_commit", 1),
            ]
        )
    return [
        table(
            "Set-up and compiling by vocabulary",
            (
                *("V", "set-up, s", "from disk, s", "compiled", "compile, ms"),
                *("byte machine, ms", "from disk, ms", "llguidance, ms"),
            ),
            compiling,
            "p50 / p95 / most. Seconds of the processor, on one core.",
        ),
        table(
            "Sizes by vocabulary",
            (
                *("V", "states p50", "p90", "most", "device KiB p50", "p90", "most"),
                *("disk KiB p50", "p90", "most"),
            ),
            sizes,
            "device: the padded tables of one grammar, the vocabulary's among them.",
        ),
        table(
            "Masks by vocabulary, µs",
            (
                *("V", "schemas", "mask", "logsumexp", "within the bar", "advance"),
                *("llguidance, mask", "llguidance, step"),
            ),
            masks,
            "p50 / p95 / most over schemas. A node of eight, inside a program, on one "
            "core. The bar: 15 µs + 1.5 × logsumexp. llguidance: a call from Python, "
            "mean along an instance.",
        ),
    ]


def _three(rows: Sequence[Row], field: str, scale: float) -> str:
    values = [scale * row[field] for row in rows if field in row]
    return " / ".join(quantiles(values, ".1f", (0.5, 0.95, 1)))


def of_peers(peers: Mapping[str, Row], size: int) -> list[dict[str, Any]]:
    """Make the table of engines."""
    lines = []
    for name, result in peers.items():
        title = f"{name} {result['version'] or ''}".strip()
        rows = result["rows"]
        if result["version"] is None:
            lines.append([name, "not installed", *["–"] * 9])
            continue
        done = [row for row in rows if "verdicts" in row]
        micros = {
            field: [x for row in done for x in row[field]]
            for field in ("masks", "commits")
        }
        ms = [1e3 * row["seconds"] for row in done]
        lines.append(
            [
                title,
                f"{sum('refused' in row for row in rows)} of {len(rows)}",
                f"{sum('stopped' in row for row in rows)}",
                _instances(done, ACCEPTED, REFUSED),
                _instances(done, REFUSED, ACCEPTED),
                f"{sum(map(narrowed, done))}",
                f"{result['setup']:.2f}" if result["setup"] is not None else "–",
                " / ".join(quantiles(ms, ".1f", (0.5, 0.95, 1))),
                *(_mean(micros[field]) for field in ("masks", "commits")),
                *quantiles([row["mib"] for row in done], ".0f", (1,)),
            ]
        )
    heads = (
        *("engine", "refused", "stopped", "over-constrained", "under-constrained"),
        *("masked", "set-up, s", "compile, ms", "mask, µs", "step, µs", "MiB, most"),
    )
    return [table(f"Engines at V = {size:,}", heads, lines, PEERS)]


def _instances(rows: Sequence[Row], expected: str, verdict: str) -> str:
    """Write schemas with a wrong verdict, and the wrong instances of all."""
    wrong = [count([row], "verdicts", expected, verdict) for row in rows]
    whole = sum(row["expected"].count(expected) for row in rows)
    return f"{sum(x > 0 for x in wrong)} schemas, {sum(wrong)} of {whole}"


def narrowed(row: Row) -> int:
    """Count accepted instances of which a mask lacked a token."""
    pairs = zip(row["verdicts"], row["unmasked"])
    return sum(pair == (ACCEPTED, REFUSED) for pair in pairs)


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return " / ".join(
        [f"{np.mean(values):.1f}", *quantiles(values, ".1f", (0.5, 0.99))]
    )


def of_speed(rows: Sequence[Row], plain: str) -> list[dict[str, Any]]:
    """Make the table of decoding speeds."""
    lines = []
    rate: Callable[[Row], float] = lambda row: float(
        np.median([new / seconds for seconds, new in row["runs"]])
    )
    base = {row["batch"]: rate(row) for row in rows if row["arm"] == plain}
    for row in rows:
        rates = [new / seconds for seconds, new in row["runs"]]
        new = np.median([new for _, new in row["runs"]])
        lines.append(
            [
                row["arm"],
                f"{row['batch']}",
                f"{rate(row):.0f}",
                f"{min(rates):.0f} to {max(rates):.0f}",
                f"{new:.0f}",
                f"{rate(row) / base[row['batch']]:.2f}",
                f"{row['host_syncs']}",
            ]
        )
    heads = ("engine", "rows", "tokens/s", "range", "tokens", "of plain", "host syncs")
    return [table("Decoding speed", heads, lines, SPEED)]


SUBSETS = (
    "held: the schema has a byte machine that needs at most "
    f"{DEPTH} calling states. verdicts alike: of schemas with instances that both "
    "hold, those all of whose instances have llguidance's verdict. Instances: ours; "
    f"llguidance's. A schema that is not held has no verdict ({UNKNOWN})."
)
PEERS = (
    "refused: with a reason. stopped: over its time, or crashed. over-constrained: "
    "valid instances refused, in the files' order of members; under-constrained: "
    "invalid ones accepted; of schemas that compiled. masked: accepted instances, "
    "spelled by the tokenizer, of which a mask lacks a token. compile: p50 / p95 / "
    "most. mask, step: mean / p50 / p99, called from Python; the device form's are "
    "single calls of a compiled program here. All times are the processor's."
)
SPEED = "Medians of repeated runs in turn, the first left out. of plain: tokens/s."
