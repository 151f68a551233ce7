"""Count the instruction bundles of a grammar's masks, for TPUs."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from experiments.reporting.report import table
from experiments.studies.kernels import mask_case
from kernels import program_bundles
from kernels.program_bundles import Part, Program

HEADS = (
    "chip",
    "V",
    "ends",
    "read",
    "pairs",
    "N",
    "operations",
    "bundles",
    "scatters",
    "gathers",
    "a turn: operations",
    "bundles",
    "copied, MiB",
    "estimate",
    "µs a node, at least",
    "logsumexp, µs, at least",
)
NOTE = """\
Of one program that makes the masks of N nodes, by the compiler's final program; `ends`
tokens end the value of one state. A mask reads `read` such tokens and `pairs` rests
behind the value: padded lengths. Loops count by their turns, and a stretch that data
could skip counts whole. The walk over the stack turns as often as the deepest node
needs: `a turn` is one, beside the rest. Copies are from and to HBM. The least time is
that of the bundles, one a cycle, or of the copies at the chip's bandwidth, with one
turn; it has no waits, neither for copies nor for earlier results. `estimate`: cycles in
the compiler's cost model of the operations that it covers, gathers and scatters left
out, with one turn; for a small operation it has about 1,800 cycles, whatever that does.
Nothing ran: how long these programs wait is not known."""


def count_masks(chip: str, config: Any) -> list[dict[str, Any]]:
    """Count the programs of masks, and of `logsumexp` over their rows.

    Args:
        chip: a key of `aot.TOPOLOGIES`.
        config: `vocabularies` of a size and its endings (see `mask_case.case`), and
            `nodes`, to combine.

    Returns:
        A row a combination; seconds are of the whole program, at least.
    """
    rows = []
    for size, endings in config.vocabularies:
        case = mask_case.case(size, endings)
        for nodes in config.nodes:
            batch = case.batches(nodes, 1)[0]
            shapes = jax.tree.map(_shape, (case.tables, batch))
            program = program_bundles.compiled(chip, mask_case.masks, *shapes)
            logits = jax.ShapeDtypeStruct((nodes, case.size), jnp.float32)
            sums = program_bundles.compiled(chip, sums_of, logits)
            about = {
                "chip": chip,
                "vocab": case.size,
                "ends": case.ends,
                "read": case.tables.returns_room,
                "pairs": case.tables.pairs_room,
                "nodes": nodes,
            }
            rows.append(about | counted(chip, program, sums))
    return rows


def sums_of(logits: jax.Array) -> jax.Array:
    """Compute `logsumexp` of logits [N, V]."""
    return jax.nn.logsumexp(logits, -1)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def counted(chip: str, program: Program, sums: Program) -> dict[str, Any]:
    """Return the counts of a program of masks, and the times that they bound."""
    whole = program.once.count + program.turn.count
    return {
        "operations": program.once.runs,
        "bundles": program.once.count.bundles,
        "scatters": _bundles(program.once, "scatter"),
        "gathers": _bundles(program.once, "gather"),
        "turn_operations": program.turn.runs,
        "turn_bundles": program.turn.count.bundles,
        "copied": whole.copied,
        "unsized": whole.unsized,
        "guesses": whole.guesses,
        "estimate": program.once.estimate + program.turn.estimate,
        "seconds": program.seconds(chip),
        "logsumexp_seconds": sums.seconds(chip),
        "largest": [
            (operation.name, operation.runs, operation.count.bundles)
            for operation in itertools.islice(program.once.operations, 5)
        ],
    }


def _bundles(part: Part, kind: str) -> int:
    """Return the bundles of the operations whose name has `kind` in it."""
    return sum(x.count.bundles for x in part.operations if kind in x.name)


def markdown(report: dict[str, Any]) -> list[str]:
    """Write the table of a report's `masks` as Markdown."""
    cells = [
        [
            row["chip"],
            *(f"{row[x]:,}" for x in ("vocab", "ends", "read", "pairs", "nodes")),
            *(f"{row[x]:,}" for x in ("operations", "bundles", "scatters", "gathers")),
            *(f"{row[x]:,}" for x in ("turn_operations", "turn_bundles")),
            f"{row['copied'] / 2**20:,.2f}",
            f"{row['estimate']:,}",
            *(_least(row, x) for x in ("seconds", "logsumexp_seconds")),
        ]
        for row in report["masks"]
    ]
    return ["## Masks of a grammar", "", table(HEADS, cells), NOTE, ""]


def _least(row: dict[str, Any], name: str) -> str:
    return f"{1e6 * row[name] / row['nodes']:,.2f}" if row[name] else "–"
