"""Count the instruction bundles of a grid step of attention, for TPUs."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from experiments.reporting.report import table
from kernels import aot, block_traffic, bundles, chips
from kernels.attention_columns import tiling as over_slots

BUNDLE_HEADS = (
    "chip",
    "G",
    "N",
    "a step reads",
    "KiB",
    "bundles",
    "with masks",
    "copy, cycles",
    "products, cycles",
)
PAGE_HEADS = (
    "chip",
    "N",
    "page",
    "KiB a step",
    "bundles",
    "with masks",
    "copy, cycles",
    "products, cycles",
    "bundles a KiB",
)
COLUMN_HEADS = (
    "chip",
    "G",
    "M",
    "lse",
    "a step reads",
    "KiB",
    "bundles: first sweep",
    "last sweep",
    "copy, cycles",
    "products, cycles",
    "moved, MiB",
    "÷ keys",
)


def count_bundles(chip: str, config: Any) -> list[dict[str, Any]]:
    """Count the bundles of a grid step; a cache of 128 MiB stays out of fast memory.

    Args:
        chip: a key of `block_traffic.VMEM`.
        config: `groups` and `nodes` to combine, and the slots `size` of the cache.

    Returns:
        A row a combination: bundles of an unmasked (`whole`) and of a `masked` step;
        cycles of its copy and of its products, 0 where the clock is unknown.
    """
    cases = list(itertools.product(config.groups, config.nodes))
    shapes = []
    for groups, nodes in cases:
        shape = aot.tree_attention_shape(
            "8B", _rows(config, groups), config.size, nodes
        )
        shapes.append(dataclasses.replace(shape, groups=groups))
    steps = bundles.of_tree_attention(chip, shapes)
    rows = []
    for (groups, nodes), shape, step in zip(cases, shapes, steps, strict=True):
        cut = aot.plan(chip, shape)
        rows.append(
            {
                "chip": chip,
                "groups": groups,
                "nodes": nodes,
                "heads": cut.groups,
                "block": cut.block,
                "bytes": cut.step_bytes,
                **dataclasses.asdict(step),
                "copy": bundles.copy_cycles(chip, cut.step_bytes),
                "products": bundles.product_cycles(chip, cut),
            }
        )
    return rows


def _rows(config: Any, groups: int) -> int:
    return max(1, 2**19 // (config.size * groups))


def count_pages(chip: str, config: Any) -> list[dict[str, Any]]:
    """Count a step of a cache whose KV heads have tables of their own.

    Args:
        chip: a key of `block_traffic.VMEM`.
        config: `nodes` and `pages`, slots of one, to combine; the `size` of the cache.

    Returns:
        A row a combination, as of `count_bundles`.
    """
    cases = list(itertools.product(config.nodes, config.pages))
    shapes = []
    for nodes, page in cases:
        rows = _rows(config, 1)
        pool = {"page": page, "pages": rows * config.size // page}
        shape = aot.tree_attention_shape("8B", rows, config.size, nodes, **pool)
        shapes.append(dataclasses.replace(shape, groups=1))
    steps, counted = bundles.of_tree_attention(chip, shapes), []
    for case, shape, step in zip(cases, shapes, steps, strict=True):
        cut = aot.plan(chip, shape)
        counted.append(
            {
                "chip": chip,
                "nodes": case[0],
                "page": case[1],
                "bytes": cut.step_bytes,
                **dataclasses.asdict(step),
                "copy": bundles.copy_cycles(chip, cut.step_bytes),
                "products": bundles.product_cycles(chip, cut),
            }
        )
    return counted


def count_columns(chip: str, config: Any) -> list[dict[str, Any]]:
    """Count a step of column sums in each sweep, and the bytes of a call.

    Args:
        chip: a key of `block_traffic.VMEM`.
        config: `groups` and `queries` to combine, and the slots `size` of the cache.

    Returns:
        A row a combination, with `lse` computed and given: bundles of a step in the
        `sweeps`; cycles as of `count_bundles`; bytes of a call of full rows (`moved`)
        and of the `keys`.
    """
    cases = list(itertools.product(config.groups, config.queries, (False, True)))
    shapes = []
    for groups, queries, known in cases:
        batch = _rows(config, groups)
        shape = aot.attention_columns_shape("8B", batch, config.size, queries)
        shapes.append(dataclasses.replace(shape, groups=groups, known=known))
    counted = bundles.of_attention_columns(chip, shapes)
    tpu, cores = chips.TPUS[chip], block_traffic.CORES.get(chip, 1)
    rows = []
    for shape, sweeps in zip(shapes, counted, strict=True):
        cut = over_slots.plan(shape, block_traffic.budget(chip))
        scores = cut.groups * cut.chunks * cut.rows * cut.block
        full = np.full((shape.batch, shape.groups), shape.size)
        rows.append(
            {
                "chip": chip,
                "groups": shape.groups,
                "queries": shape.queries,
                "known": shape.known,
                "heads": cut.groups,
                "block": cut.block,
                "bytes": cut.step_bytes,
                "sweeps": sweeps,
                "copy": bundles.copy_cycles(chip, cut.step_bytes),
                "products": 2 * scores * shape.dim * cores / tpu.flops * tpu.clock,
                "moved": sum(cut.traffic(full).values()),
                "keys": shape.key_bytes,
            }
        )
    return rows


COUNTS = {"bundles": count_bundles, "pages": count_pages, "columns": count_columns}


def markdown(report: dict[str, Any]) -> list[str]:
    """Write the tables of a report's `bundles`, `pages` and `columns` as Markdown."""
    mib = 2**20
    counted = [
        [
            row["chip"],
            str(row["groups"]),
            str(row["nodes"]),
            f"{row['heads']} heads × {row['block']} slots",
            f"{row['bytes'] / 1024:,.0f}",
            f"{row['whole']:,}",
            f"{row['masked']:,}",
            *_cycles(row),
        ]
        for row in report["bundles"]
    ]
    pages = [
        [
            row["chip"],
            str(row["nodes"]),
            str(row["page"]),
            f"{row['bytes'] / 1024:,.0f}",
            f"{row['whole']:,}",
            f"{row['masked']:,}",
            *_cycles(row),
            f"{1024 * row['whole'] / row['bytes']:.2f}",
        ]
        for row in report["pages"]
    ]
    columns = [
        [
            row["chip"],
            str(row["groups"]),
            str(row["queries"]),
            "given" if row["known"] else "computed",
            f"{row['heads']} heads × {row['block']} slots",
            f"{row['bytes'] / 1024:,.0f}",
            "–" if row["known"] else f"{row['sweeps'][0]:,}",
            f"{row['sweeps'][-1]:,}",
            *_cycles(row),
            f"{row['moved'] / mib:,.1f}",
            f"{row['moved'] / row['keys']:.3f}",
        ]
        for row in report["columns"]
    ]
    return [
        "## Bundles",
        "",
        "Instruction bundles of a grid step in the compiler's final program, for G "
        "KV heads with four query heads each. A core issues one a cycle; stalls "
        "are not in the count. The largest of bundles, copy and products bounds a "
        "step. Cycles are a core's, at the chip's bandwidth and peak rate, with "
        "every core at work.",
        "",
        table(BUNDLE_HEADS, counted),
        "## Pages of each KV head",
        "",
        "A KV head with a page table of its own is a row of one KV head.",
        "",
        table(PAGE_HEADS, pages),
        "## Column sums",
        "",
        "Sums over M queries of each of four query heads a KV head. Without their "
        "log-sum-exps a first sweep over the keys computes them. Bytes are a "
        "call's, of full rows.",
        "",
        table(COLUMN_HEADS, columns),
    ]


def _cycles(row: dict[str, Any]) -> list[str]:
    """Write the cycles of a step's copy and products; unknown ones are 0."""
    return [f"{row[x]:,.0f}" if row[x] else "–" for x in ("copy", "products")]
