"""The stage `accelerator_day`: what a day with a chip is for, in one command.

Parity of every kernel with its reference, shares of the bandwidth with calls chained in
one program, masks of a grammar, plain steps and rounds with trees of models of real
shapes, and training.
Without an accelerator the same stages run on small shapes: a rehearsal.
"""

import functools
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import jax

from experiments import console
from experiments.reporting.report import table
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.kernels import (
    chained_timing,
    mask_timing,
    model_timing,
    parity,
)

HELD = """\
Held to: tree attention at least 0.85 of the best reader's bandwidth for N <= 64, N = 64
at most 1.15 times N = 1, N = 1 not slower than cuDNN; verify at least 0.80; tokens a
second from the shortest to the longest shared prefix fall by less than 15 %; a plain
step of 8B at MBU 0.75 or more, a round of 64 nodes at most 1.25 plain steps."""


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Measure every piece that the folder lacks; a piece that fails tells why."""
    hardware, versions = common.provenance(store)
    rehearsal = jax.default_backend() == "cpu"
    settings = config.rehearsal if rehearsal else config.chip
    pieces = planned(settings)
    found: dict[str, Any] = {}
    with console.bar(len(pieces), "measuring") as bar:
        for name, make in pieces.items():
            bar.doing(name)
            piece = functools.partial(_piece, make, found)
            found[name] = store.make("pieces", name, piece)
            bar.done()
    return {
        "hardware": hardware,
        "versions": versions,
        "rehearsal": rehearsal,
        "pieces": found,
    }


def planned(settings: Any) -> dict[str, Callable[[float], Iterable[Any]]]:
    """Name the pieces, each made from the best reader's GB/s, in order of use."""
    kernels, models = settings.kernels, settings.models
    pieces: dict[str, Callable[[float], Iterable[Any]]] = {
        "ceilings": lambda gb_s: [chained_timing.ceilings(settings.ceilings)],
        "parity": lambda gb_s: parity.rows(settings.parity),
        "attention": functools.partial(chained_timing.attention, kernels),
        "vocabulary": functools.partial(chained_timing.vocabulary, kernels),
        "stretches": functools.partial(chained_timing.stretches, settings.stretches),
        "masks": functools.partial(mask_timing.rows, settings.masks),
    }
    for name in models.rounds:
        pieces[f"rounds_{name}"] = functools.partial(
            model_timing.rounds, models, models.shapes[name]
        )
    shape = models.shapes[models.prefixed]
    pieces["prefixes"] = lambda gb_s: model_timing.prefixes(models, shape)
    trained = models.shapes[models.trained]
    pieces["training"] = lambda gb_s: [
        model_timing.training(settings.training, trained)
    ]
    return pieces


def _piece(
    make: Callable[[float], Iterable[Any]], found: dict[str, Any]
) -> dict[str, Any]:
    """Make a piece's rows; an error ends them and stands beside those before it."""
    begun, rows, error = time.perf_counter(), [], ""
    ceilings = found.get("ceilings", {"rows": []})["rows"]
    try:
        for row in make(ceilings[0]["gb_s"] if ceilings else 1.0):
            rows.append(row)
    except Exception:  # a kernel that fails must not cost the chip's other figures
        error = traceback.format_exc(limit=-3)
    jax.clear_caches()
    return {"rows": rows, "error": error, "seconds": time.perf_counter() - begun}


def write_report(
    store: RunFolder, config: Any, found: dict[str, Any]
) -> dict[str, Any]:
    """Write report.json and report.md."""
    return common.write_page(store, found, markdown)


def markdown(report: dict[str, Any]) -> str:
    """Write the report as Markdown; it says which device."""
    hardware, pieces = report["hardware"], report["pieces"]
    named = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    lines = ["# `configs/studies/accelerator_day.py`", ""]
    if report["rehearsal"]:
        lines += ["A rehearsal on small shapes: **no accelerator took part**.", ""]
    lines += [
        f"- device: {hardware['devices']} × {hardware['device']} "
        f"({hardware['platform']}); host: {hardware['processor']}, "
        f"{hardware['cores']} cores",
        f"- versions: {named}",
        f"- command: `{report['command']}`",
    ]
    if pieces["ceilings"]["rows"]:
        top = pieces["ceilings"]["rows"][0]
        lines.append(
            f"- GB/s (sheet: {top['sheet_gb_s']:,.0f}): a copy {top['copy']:,.0f}, "
            f"a sum {top['sum']:,.0f}, a matrix times a vector "
            f"{top['matrix_vector']:,.0f}; TFLOP/s of a bfloat16 product "
            f"(sheet: {top['sheet_flops'] / 1e12:,.0f}): "
            f"{top['flops'] / 1e12:,.1f}"
        )
    lines += ["", HELD, ""]
    for name, piece in pieces.items():
        if name != "ceilings":
            lines += [f"## {name} ({piece['seconds']:.0f} s)", ""]
            is_masks = name == "masks" and piece["rows"]
            table_of = functools.partial(mask_timing.markdown, pieces=pieces)
            rows = piece["rows"]
            lines += [table_of(rows) if is_masks else _table(name, rows)]
        if piece["error"]:
            lines += [
                f"`{name}` ended early; without pieces/{name}.json in the folder the "
                "same command tries again:",
                *("", "```", piece["error"], "```", ""),
            ]
    return "\n".join(lines)


def _table(name: str, rows: list[dict[str, Any]]) -> str:
    heads: tuple[str, ...]
    if not rows:
        return ""
    if name == "parity":
        heads = ("case", "form", "largest difference", "bound", "planted", "verdict")
        cells = [
            [
                row["name"],
                row["form"],
                f"{row['apart']:.1e}",
                f"{row['bound']:.0e}",
                f"{row['fault']:.1e}",
                "equal" if row["equal"] else "**DIFFERENT**",
            ]
            for row in rows
        ]
        return table(heads, cells)
    if name.startswith("rounds"):
        plain = {row["form"]: row["ms"] for row in rows if row["nodes"] == 1}
        heads = ("form", "N", "ms", "÷ plain", "MBU")
        cells = [
            [
                row["form"],
                str(row["nodes"]),
                f"{row['ms']:.3f}",
                _ratio(row["ms"], plain.get(row["form"])),
                f"{row['mbu']:.2f}",
            ]
            for row in rows
        ]
        return table(heads, cells)
    if name == "prefixes":
        shortest: dict[str, float] = {}
        cells = []
        for row in rows:
            of = shortest.setdefault(row["form"], row["tokens_s"])
            cells.append(
                [
                    row["form"],
                    f"{row['prefix']:,}",
                    f"{row['tokens_s']:,.0f}",
                    _ratio(row["tokens_s"], of),
                ]
            )
        return table(("form", "prefix", "tokens/s", "÷ shortest"), cells)
    if name == "training":
        cells = [
            [
                f"{row['params'] / 1e6:,.0f}",
                f"{row['seconds_per_step']:.3f}",
                f"{row['tokens_per_s']:,.0f}",
                f"{row['mfu']:.2f}",
                f"{row['loss']:.2f}",
            ]
            for row in rows
        ]
        return table(("M params", "s a step", "tokens/s", "MFU", "loss"), cells)
    return _kernel_table(rows)


def _kernel_table(rows: list[dict[str, Any]]) -> str:
    """Write timed calls, with ratios to one node and to XLA's form of the same call."""
    fields = [f for f in ("batch", "size", "nodes", "stretch") if f in rows[0]]

    def key(row: dict[str, Any], **changes: Any) -> tuple:
        return tuple({**row, **changes}[f] for f in ("form", *fields))

    times = {key(row): row["us"] for row in rows}
    cells = []
    for row in rows:
        kind, _, form = row["form"].rpartition(": ")
        form, comma, pages = form.partition(", ")
        xla = (f"{kind}: " if kind else "") + "xla" + comma + pages
        cells.append(
            [
                row["form"],
                *(f"{row[f]:,}" for f in fields),
                f"{row['us']:,.1f}",
                f"{row['gb_s']:,.0f}",
                f"{row['share']:.2f}",
                _ratio(row["us"], times.get(key(row, nodes=1))),
                _ratio(row["us"], times.get(key(row, form=xla))),
            ]
        )
    names = {"batch": "B", "size": "S or V", "nodes": "N"}
    heads = ["form", *(names.get(f, f) for f in fields)]
    return table((*heads, "µs", "GB/s", "÷ best", "÷ N = 1", "÷ xla"), cells)


def _ratio(value: float, of: float | None) -> str:
    return "" if of is None else f"{value / of:.2f}"


STAGE = Stage(run, "A day with an accelerator", write=write_report)
