"""Time the masks of a grammar in one program, beside `logsumexp` over their rows."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from experiments.reporting import report
from experiments.studies.kernels import mask_case
from experiments.studies.kernels.chained_timing import seconds_a_call

NOTE = """\
A JSON schema of usual size (strings, numbers, an enum, an array, an object in it) over
V tokens, of which `ends` end the value of one state. A mask reads `read` such tokens
and `pairs` rests behind the value: padded lengths. Times are of a node. Of a round: N
masks over the round of N nodes, commit included, in its fastest form, where this run
has measured one. The bar of 15 µs + 1.5 × logsumexp is one of CPU threads; for chips
no bar is stated."""


def rows(settings: Any, gb_s: float) -> Iterator[dict[str, Any]]:
    """Time masks by vocabulary and nodes.

    Args:
        settings: `vocabularies` of a size and its `endings` (see `mask_case.case`);
            `nodes` at once; `batches` of them in turn, `calls` in one program, and its
            `repeats`.
        gb_s: not used; the bandwidth of other pieces.

    Yields:
        µs of a node's mask and of `logsumexp` over its row.
    """
    for size, endings in settings.vocabularies:
        case = mask_case.case(size, endings)
        for nodes in settings.nodes:
            operands = [
                (case.tables, batch) for batch in case.batches(nodes, settings.batches)
            ]
            loops = max(1, settings.calls // settings.batches)
            parity = jnp.zeros((nodes, case.size), bool)
            spent = seconds_a_call(_mask, parity, operands, loops, settings.repeats)
            keys = jax.random.split(jax.random.key(0), settings.batches)
            logits = [jax.random.normal(key, (nodes, case.size)) for key in keys]
            at = jnp.zeros((nodes, 1))
            sums = seconds_a_call(_sum, at, logits, loops, settings.repeats)
            yield {
                "vocab": case.size,
                "ends": case.ends,
                "read": case.tables.returns_room,
                "pairs": case.tables.pairs_room,
                "nodes": nodes,
                "us": 1e6 * spent / nodes,
                "logsumexp": 1e6 * sums / nodes,
            }


def _mask(parity: Array, operand: tuple) -> Array:
    return parity ^ mask_case.masks(*operand)


def _sum(at: Array, logits: Array) -> Array:
    return 1e-6 * jax.nn.logsumexp(logits + at, -1, keepdims=True)


def markdown(measured: list[dict[str, Any]], pieces: dict[str, Any]) -> str:
    """Write the table of masks, with their share of the rounds in `pieces`.

    Args:
        measured: what `rows` yields.
        pieces: of the report; `rounds_<model>` have `nodes` and `ms`.
    """
    models = [name for name in pieces if name.startswith("rounds_")]
    heads: tuple[str, ...] = (
        "V",
        "ends",
        "read",
        "pairs",
        "N",
        "mask, µs",
        "logsumexp, µs",
    )
    heads += tuple(f"of a round of {name.removeprefix('rounds_')}" for name in models)
    cells = [
        [
            *(f"{row[x]:,}" for x in ("vocab", "ends", "read", "pairs", "nodes")),
            *(f"{row[x]:.2f}" for x in ("us", "logsumexp")),
            *(share(row, pieces[name]["rows"]) for name in models),
        ]
        for row in measured
    ]
    return "\n".join([report.table(heads, cells), NOTE, ""])


def share(row: dict[str, Any], rounds: list[dict[str, Any]]) -> str:
    """Return the masks' share of the fastest round of as many nodes; "" without one."""
    same = [of["ms"] for of in rounds if of["nodes"] == row["nodes"]]
    if not same:
        return ""
    return f"{100 * row['nodes'] * row['us'] / (1e3 * min(same)):.1f} %"
