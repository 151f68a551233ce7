"""The preflight report: its tables, and the Markdown file that holds them."""

import json
from collections.abc import Sequence
from typing import Any

from kernels.chips import GIB
from models import storage


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format the rows as a Markdown table; GiB are of one device."""
    out = [
        "| program | rows | params | optimiser | frozen, drafts | cache | "
        "temporaries | all / HBM, GiB | Tops | GB moved | compiler's ms | "
        "collectives (MB) | MBU |",
        "|---|" + "---|" * 12,
    ]
    for row in rows:
        parts = row["parts"]
        frozen = parts.get("frozen target", 0) + parts.get("drafts", 0)
        gib = [
            parts["params"],
            parts.get("optimiser", 0),
            frozen,
            parts.get("cache", 0),
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
            collectives or "none",
            f"{row['mbu']:.2f}" if "mbu" in row else "—",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def bounds(rows: Sequence[dict[str, Any]]) -> str:
    """Put the ceilings into a sentence; "" where the chip's rates are unknown."""
    for row in rows:
        if "plain" in row and row["program"].startswith("decode"):
            return (
                f"A text alone, a token a call: at most {row['plain']:.0f} tokens/s "
                f"from each copy of the weights; a block of {row['free']} tokens costs "
                f"no more, {row['at_free']:.0f} tokens/s if all of them held."
            )
    return ""


INTRODUCTION = """# Preflight

What recipes need on slices that were not there: every row is a program that the real
compiler made for the real target, and nothing was run. Figures are of one device.
`compiler's ms` is the compiler's estimate of a step, where it gives one (of a loop,
one round); `collectives` counts instructions once, with the bytes of their results.
`MBU` is what a step must read (weights, full caches) over what the bandwidth allows in
the longest of the compiler's estimate and the roofline of its own operations and
bytes. It is a lower bound: the compiler counts the whole of an array that a gather or
a scatter touches, and a kernel's bytes are what its author declared. Rows without a
commit are older: their losses were float32 and their batches without masks.
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
        text += ["", bounds(e["rows"]), "", e["verdict"], ""]
    storage.write(report, "\n".join(text).rstrip() + "\n" + end)
