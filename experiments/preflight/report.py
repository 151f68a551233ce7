"""The preflight report: its tables, and the Markdown file that holds them."""

import json
from collections.abc import Sequence
from typing import Any

from experiments.preflight import programs
from kernels.chips import GIB
from models import storage


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format the rows as a Markdown table; GiB are of one device."""
    out = [
        "| program | rows | params | optimiser | frozen, drafts | cache | "
        "temporaries | all / HBM, GiB | Tops | GB moved | compiler's ms | "
        "attention's ms | links' ms | our ms | collectives (MB) | MBU |",
        "|---|" + "---|" * 15,
    ]
    for row in rows:
        parts = row["parts"]
        frozen = parts.get("frozen target", 0) + parts.get("drafts", 0)
        gib = [
            parts["params"],
            parts.get("optimiser", 0),
            frozen,
            parts.get("cache", 0) + parts.get(programs.WAITING, 0),
            row["temporaries"],
        ]
        collectives = ", ".join(
            f"{c['count']} {kind} ({c['bytes'] / 1e6:.1f})"
            for kind, c in sorted(row["collectives"].items())
        )
        cells = [
            row["program"],
            f"{row['rows']}",
            *(f"{n / GIB:.2f}" for n in gib),
            f"{row['need'] / GIB:.2f} / {row['hbm'] / GIB:.0f}",
            f"{row['flops'] / 1e12:.3f}",
            f"{row['bytes'] / 1e9:.2f}",
            f"{row['seconds'] * 1e3:.2f}" if row["seconds"] else "—",
            *_times(row),
            collectives or "none",
            f"{row['mbu']:.2f}" if "mbu" in row else "—",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _times(row: dict[str, Any]) -> list[str]:
    """Format the attention kernels' time, the links', and a step's, as we estimate."""
    times = row.get("times")
    if times is None:
        return ["—"] * 3
    links = times["waiting"] + times["running"]
    attention = times["attention"]
    counted = "declared" if attention is None else f"{attention * 1e3:.2f}"
    step = f"{row['roofline'] * 1e3:.2f}"
    if "least" in row:
        step = f"{row['least'] * 1e3:.2f} to {step}"
    return [counted, f"{links * 1e3:.2f}", step]


def bounds(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Put the ceilings of decoding programs into sentences.

    None of them where the chip's rates are unknown.
    """
    decodings = [r for r in rows if "plain" in r and r["program"].startswith("decode")]
    if decodings and decodings[0].get("by_tokens"):
        return [of_experts(decodings[0])]
    lines = [
        f"A text alone, a token a call: at most {row['plain']:.0f} tokens/s "
        f"from each copy of the weights; a call of {row['free']} tokens costs "
        f"no more, {row['at_free']:.0f} tokens/s if all of them held."
        for row in decodings[:1]
    ]
    return lines + [width(row) for row in decodings if row.get("beside")]


def of_experts(row: dict[str, Any]) -> str:
    """Tell what calls of a mixture of experts read, by their tokens."""
    read = {int(n): x for n, x in row["by_tokens"].items()}
    parts = ", ".join(
        f"{n}: {x / 1e9:.2f} ({x / read[1]:.1f})" for n, x in read.items()
    )
    return (
        f"A text alone, a token a call: at most {row['plain']:.0f} tokens/s from each "
        f"copy of the weights. GB of weights that a call reads on a device, by its "
        "tokens, with experts chosen independently (times those of one token): "
        f"{parts}. "
        f"{row['program']}: {row['beside']} x {row['tokens']} tokens a copy."
    )


def width(row: dict[str, Any]) -> str:
    """Compare the tokens that a decoding verifies with those that are free."""
    rows, nodes, free = row["beside"], row["tokens"], row["free"]
    tokens = rows * nodes
    verb = "runs" if "wide" in row else "verifies"
    line = (
        f"{row['program']}: {verb} {rows} x {nodes} = {tokens} tokens a copy, "
        f"{free} are free"
    )
    if row.get("wide", 0) > nodes:
        line += f" (a wide call runs {rows} x {row['wide']} = {rows * row['wide']})"
    if tokens <= free:
        return f"{line}."
    fewer = f"{free // rows} nodes" if free >= 2 * rows else f"{free // nodes} rows"
    return (
        f"{line}: products take {tokens / free:.1f} times as long as the read of the "
        f"weights; {fewer} would be free."
    )


INTRODUCTION = """# Preflight

What recipes need on slices that were not there: every row is a program that the real
compiler made for the real target, and nothing was run. Figures are of one device.
`compiler's ms` is the compiler's estimate of a step, where it gives one. All figures
count the body of a loop once: one round of a decoding, one part of a batch that a
training cuts into parts. `collectives` has the bytes of their results.
`our ms` is the longest of its operations at the chip's peak, its bytes at the HBM's
bandwidth and the collectives that run beside other work, with those added that nothing
can hide (`experiments/preflight/estimate.py`); "—" in rows from before it was counted.
Of a decoding it begins with the bytes of weights and full caches alone, and ends with
all that the compiler counts, which has the whole of an array that a gather or a scatter
touches, and copies within fast memory.
`links' ms` is all collectives on the links of their groups. `attention's ms` is the
attention kernels' bundles, in place of the operations that they declare ("declared":
the chip's clock is unknown). `MBU` is what a step must read (weights, full caches) over
what the bandwidth allows in the longest of the estimates: a lower bound. A kernel's
bytes are what its author declared. Tokens are free where their products take no longer
than the read of the weights; on the links each of them costs. Rows without a commit
are older: their losses were float32 and their batches without masks.
"""
NOT_RUN = "\n## Not run\n"  # begins the end of the report, which is written by hand


def write(report: storage.Path, entry: dict[str, Any]) -> None:
    """Add or replace `entry` in the report's JSON file, and write the report.

    The text from `NOT_RUN` on stays.
    """
    end = "".join(report.read_text().partition(NOT_RUN)[1:]) if report.exists() else ""
    store = report.with_suffix(".json")
    entries = json.loads(store.read_text()) if store.exists() else []
    names = ("config", "topology", "command")
    entries = [e for e in entries if any(e[n] != entry[n] for n in names)] + [entry]
    entries.sort(key=lambda e: [e[n] for n in names])
    storage.write(store, json.dumps(entries, indent=1) + "\n")
    text = [INTRODUCTION]
    for e in entries:
        text += [f"## {e['config']} on {e['topology']}", "", f"`{e['command']}`", ""]
        origin = f" Commit {e['commit']}, {e['date']}." if e.get("commit") else ""
        text += [f"{e['devices']} devices, mesh {e['mesh']}.{origin}", ""]
        text += lines(e["rows"])
        for sentence in [*bounds(e["rows"]), e["verdict"]]:
            text += ["", sentence]
        text.append("")
    storage.write(report, "\n".join(text).rstrip() + "\n" + end)
