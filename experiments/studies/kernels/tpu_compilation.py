"""Compile attention and masks for TPUs, and time attention on this machine."""

import functools
import itertools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import console
from experiments.reporting.report import table
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.kernels import mask_bundles, step_bundles
from kernels import aot, block_traffic
from kernels.tree_attention import runs_kernel, tree_attention
from models.base import pack_bits
from models.errors import ConfigError

HEADS = (
    "chip",
    "model",
    "S",
    "N",
    "B",
    "a step reads",
    "passes",
    "planned VMEM, MiB",
    "chip's, MiB",
    "moved, MiB",
    "÷ least",
    "cache copies",
)
COUNTS = {**step_bundles.COUNTS, "masks": mask_bundles.count_masks}
TIME_HEADS = ("form", "N", "ms", "cache GB/s", "÷ one node")


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Compile missing configurations, and return all of them."""
    try:
        import libtpu
    except ImportError as error:
        raise ConfigError(
            f"the stage 'tpu_compilation' needs the extra `tpu` ({error}): "
            'pip install "decodax[tpu]"'
        ) from error
    hardware, versions = common.provenance(store)
    versions = {**versions, "libtpu": libtpu.__version__}
    grid = list(
        itertools.product(
            config.chips, config.models, config.sizes, config.nodes, config.batches
        )
    )
    compiled = []
    counts: dict[str, list] = {name: [] for name in COUNTS}
    parts = [
        (name, count, chip)
        for name, count in COUNTS.items()
        for chip in config[name].chips
    ]
    with console.bar(len(grid) + len(parts) + 1, "compiling") as bar:
        for case in grid:
            bar.doing(" ".join(map(str, case)))
            key = "-".join(map(str, case))
            make = functools.partial(compile_one, *case)
            compiled.append(store.make("compiled", key, make))
            bar.done()
        for name, count, chip in parts:
            bar.doing(f"{name} {chip}")
            found = functools.partial(count, chip, config[name])
            counts[name] += store.make(name, chip, found)
            bar.done()
        bar.doing("times")
        times = store.make("parts", "times", lambda: measure(config))
        bar.done()
    return {
        "hardware": hardware,
        "versions": versions,
        "compiled": compiled,
        **counts,
        "times": times,
    }


def write_report(
    store: RunFolder, config: Any, found: dict[str, Any]
) -> dict[str, Any]:
    """Write report.json and report.md."""
    return common.write_page(store, found, markdown)


def compile_one(
    chip: str, model: str, size: int, nodes: int, batch: int
) -> dict[str, Any]:
    """Compile one configuration for a TPU, within the chip's vector memory.

    Args:
        chip: a key of `block_traffic.VMEM`.
        model: a key of `aot.MODELS`.
        size: slots of the cache.
        nodes: nodes of the block.
        batch: rows.

    Returns:
        The row; `vmem`, `budget`, `moved` and `least` are bytes.
    """
    shape = aot.tree_attention_shape(model, batch, size, nodes)
    begun = time.perf_counter()
    cut, compiled = aot.tree_attention(chip, shape)
    seconds = time.perf_counter() - begun
    full = cut.bounds_at(np.full(batch, size - nodes))
    return {
        "chip": chip,
        "model": model,
        "size": size,
        "nodes": nodes,
        "batch": batch,
        "heads": cut.groups,
        "block": cut.block,
        "passes": cut.passes,
        "vmem": cut.vmem,
        "budget": block_traffic.VMEM[chip],
        "moved": sum(cut.traffic(full).values()),
        "least": shape.least_bytes,
        "copies": len(aot.copies_of_the_cache(compiled.as_text(), shape)),
        "seconds": seconds,
    }


def measure(config: Any) -> list[dict[str, Any]]:
    """Time one layer's call at batch 1, for every form that runs here; medians."""
    timed = config.timed
    groups, heads = aot.MODELS[config.models[0]]
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    keys = jax.random.split(jax.random.key(0), 3)
    cache = (1, groups, timed.size, 128)
    k, v = (jax.random.normal(key, cache, dtype) for key in keys[:2])
    rows = []
    for form in ("xla", "pallas") if runs_kernel("auto") else ("xla",):
        for nodes in timed.nodes:
            q = jax.random.normal(keys[2], (1, nodes, groups * heads, 128), dtype)
            chain = pack_bits(jnp.tril(jnp.ones((1, nodes, nodes), bool)))
            lengths = jnp.array([timed.size - nodes], jnp.int32)

            @jax.jit
            def call(q, k, v, form=form, lengths=lengths, chain=chain):
                return tree_attention(q, k, v, lengths, chain, kernel=form)

            jax.block_until_ready(call(q, k, v))
            spent = []
            for _ in range(timed.repeats):
                begun = time.perf_counter()
                jax.block_until_ready(call(q, k, v))
                spent.append(time.perf_counter() - begun)
            seconds = statistics.median(spent)
            rows.append(
                {
                    "form": form,
                    "nodes": nodes,
                    "ms": 1e3 * seconds,
                    "gb_s": (k.nbytes + v.nbytes) / seconds / 1e9,
                }
            )
    return rows


def markdown(report: dict[str, Any]) -> str:
    """Write the report as Markdown."""
    hardware, versions = report["hardware"], report["versions"]
    mib = 2**20
    rows = [
        [
            row["chip"],
            row["model"],
            str(row["size"]),
            str(row["nodes"]),
            str(row["batch"]),
            f"{row['heads']} heads × {row['block']} slots",
            str(row["passes"]),
            f"{row['vmem'] / mib:.1f}",
            f"{row['budget'] / mib:.0f}",
            f"{row['moved'] / mib:,.1f}",
            f"{row['moved'] / row['least']:.3f}",
            str(row["copies"]),
        ]
        for row in report["compiled"]
    ]
    # The last to be set is the first row of a form: its fewest nodes.
    first = {row["form"]: row["ms"] for row in reversed(report["times"])}
    times = [
        [
            row["form"],
            str(row["nodes"]),
            f"{row['ms']:.2f}",
            f"{row['gb_s']:.1f}",
            f"{row['ms'] / first[row['form']]:.2f}",
        ]
        for row in report["times"]
    ]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            "# `configs/studies/kernels.py`: attention, compiled for TPUs",
            "",
            f"- machine: {hardware['processor']}, {hardware['cores']} cores, "
            f"{hardware['devices']} × {hardware['device']}; no TPU took part",
            f"- versions: {named}",
            f"- command: `{report['command']}`",
            "",
            f"{len(rows)} configurations, each compiled by the TPU compiler with the "
            "chip's vector memory as its limit. Bytes are counted from the blocks that "
            "the kernel's index maps fetch when every row is full; the least is the "
            "cache, q and the output once.",
            "",
            table(HEADS, rows),
            *step_bundles.markdown(report),
            *mask_bundles.markdown(report),
            "## Times on this machine",
            "",
            "One layer of the first model, batch 1, full cache.",
            "",
            table(TIME_HEADS, times),
        ]
    )


STAGE = Stage(run, "Kernels", write=write_report)
