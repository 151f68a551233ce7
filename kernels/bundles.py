"""Instruction bundles of a grid step, from the TPU compiler's final program.

A TensorCore issues one VLIW bundle a cycle. A kernel overlaps a step's bundles with
the copy of the next step's blocks. So the larger of the two bounds a step from below.
Stalls are not in the count: a bundle that reads a product waits until it is there.
Nothing runs: libtpu compiles in a process of its own, because it reads its flags only
when it is loaded. Needs the extra `tpu`.
"""

import collections
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from kernels import aot, block_traffic, bundle_text, chips, compiler_dumps
from kernels.attention_columns import tiling as over_slots
from kernels.bundle_text import DELAY_SLOTS, Bundle, BundlesError
from kernels.tree_attention import tiling

_SKIP = re.compile(r"sbr\.rel \(!?%p\w+\) target = \$region(\d+)\b")
# The compiler copies the metadata to other instructions; the call alone counts.
_SHAPE = re.compile(
    r'"tpu_custom_call"[^\n]*\bkernel_metadata=(\{[^{}]*"cache_dtype"[^{}]*\})'
)
_EXIT = re.compile(
    r"scmp\.ge\.s32\.totalorder (%s\d+)_s\d+, (\d+) /\* loop exit test \*/"
)


# The kernels whose steps are counted: their shapes, and how a call is compiled.
KERNELS: dict[str, tuple[Any, Any]] = {
    "tree_attention": (tiling.Shape, aot.tree_attention),
    "attention_columns": (over_slots.Shape, aot.attention_columns),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """Bundles of a grid step whose block is `whole` (unmasked), or `masked`."""

    whole: int
    masked: int


def of_tree_attention(chip: str, shapes: Sequence[tiling.Shape]) -> list[Step]:
    """Compile a call of each shape for `chip`, and count.

    The cache should be larger than the chip's vector memory: the compiler may otherwise
    keep it there, which spares the copies that a model's call has.

    Raises:
        BundlesError: no final bundles; the message has the compiler's last lines.
    """
    return [count(text) for text in final_programs(chip, shapes)]


def of_attention_columns(chip: str, shapes: Sequence[over_slots.Shape]) -> list[list]:
    """Compile calls as `of_tree_attention`; return a step's bundles in each sweep."""
    texts = final_programs(chip, shapes, "attention_columns")
    return [branches(text) for text in texts]


def calls(text: str) -> collections.Counter[tiling.Shape]:
    """Count the calls of tree attention in a compiled program, by shape.

    Args:
        text: of the program; a call in a loop's body counts once.
    """
    return collections.Counter(
        tiling.Shape.read(json.loads(written)) for written in _SHAPE.findall(text)
    )


@functools.cache
def call_cycles(chip: str, shape: tiling.Shape) -> float:
    """Return the least cycles of a call whose rows fill the cache.

    A core's steps, each as long as its bundles or as its copy. One step a row, the
    last, has masks. Compiles the kernel once a process, in about ten seconds.

    Raises:
        BundlesError: as `of_tree_attention`.
    """
    (step,) = of_tree_attention(chip, [shape])
    return cycles_of(chip, aot.plan(chip, shape), step)


def cycles_of(chip: str, plan: tiling.Plan, step: Step) -> float:
    """Return the least cycles of a call of `plan`, of the bundles of a `step`."""
    copy = copy_cycles(chip, plan.step_bytes)
    rows = -(-plan.shape.batch // plan.cores)
    row = (plan.blocks - 1) * max(step.whole, copy) + max(step.masked, copy)
    return rows * plan.shape.groups // plan.groups * plan.passes * row


def copy_cycles(chip: str, num_bytes: int) -> float:
    """Return a core's cycles for a copy from HBM with every core of `chip` at work.

    0 where the clock is unknown.
    """
    cores = block_traffic.CORES.get(chip, 1)
    return num_bytes * cores / chips.TPUS[chip].bandwidth * chips.TPUS[chip].clock


def product_cycles(chip: str, plan: tiling.Plan) -> float:
    """Return a core's cycles for the products of a step at the chip's peak rate.

    0 where the clock is unknown.
    """
    rows = plan.groups * plan.chunks * plan.at.rows
    operations = 4 * rows * plan.block * plan.shape.dim
    cores = block_traffic.CORES.get(chip, 1)
    return operations * cores / chips.TPUS[chip].flops * chips.TPUS[chip].clock


def final_programs(
    chip: str, shapes: Sequence[Any], kernel: str = "tree_attention"
) -> list[str]:
    """Return the texts of the final bundles of a call, one a shape.

    Args:
        chip: a key of `aot.TOPOLOGIES`.
        shapes: of the calls.
        kernel: a key of `KERNELS`.
    """
    given = [json.dumps(shape.written()) for shape in shapes]
    with compiler_dumps.folder() as folder:
        done = compiler_dumps.compile_in(
            folder, "kernels.bundles", kernel, chip, *given
        )
        # Names begin with the time of the compilation, in nanoseconds.
        files = sorted(folder.glob(f"*{kernel}*-final_bundles.txt"))
        texts = [path.read_text(errors="replace") for path in files]
    if done.returncode or len(texts) != len(shapes):
        raise BundlesError(
            f"{chip}: {len(texts)} dumps of final bundles where {len(shapes)} were "
            f"expected (exit code {done.returncode}). Needs a libtpu that knows "
            f"{' '.join(compiler_dumps.FLAGS)}. {done.stderr[-2000:]}"
        )
    return texts


def count(text: str) -> Step:
    """Count the bundles that a step of tree attention runs.

    Of the branches beside each other, two hold products: the unmasked block's and,
    after it, the masked block's. A step runs one of the two. The first and the last
    step of a row, which run the other branches too, are not counted.

    Args:
        text: of the kernel's final bundles.
    """
    counts = branches(text)
    if len(counts) != 2:
        raise BundlesError(f"{len(counts)} branches with products, not 2")
    return Step(*counts)


def branches(text: str) -> list[int]:
    """Count the bundles of a step, for each branch that holds products.

    A step runs the loop over the grid once, without the branches over which it jumps,
    and one of those with products.

    Args:
        text: of the kernel's final bundles.
    """
    bundles = _parse(text)
    times = _times(bundles)
    skips = _skips(bundles)
    products = [s for s in skips if _has(bundles, s, "vmatmul")]
    leaves = [s for s in products if not any(_within(o, s) for o in products)]
    if not leaves:
        raise BundlesError("0 branches with products")
    parents = [s for s in skips if _within(leaves[0], s)]
    parent = min(parents, key=lambda s: s[1] - s[0], default=(0, len(bundles)))
    inside = [s for s in skips if _within(s, parent) and not _has(bundles, s, "dma.")]
    beside = [s for s in inside if not any(_within(s, o) for o in inside)]
    size = {s: sum(times[slice(*s)]) for s in beside}
    rest = sum(times) - sum(size.values())
    return [rest + size[leaf] for leaf in leaves]


def _parse(text: str) -> list[Bundle]:
    bundles = bundle_text.parse(text)
    if sum(b.label == "LB" and b.depth == 1 for b in bundles) != 1:
        raise BundlesError("not the text of one loop over a grid")
    return bundles


def _times(bundles: list[Bundle]) -> list[int]:
    """Return how often each bundle runs in one pass of the grid's loop."""
    times = [int(b.depth > 0) for b in bundles]
    for begin, b in enumerate(bundles):
        if b.label == "LB" and b.depth > 1:
            end = begin
            while end < len(bundles) and bundles[end].depth >= b.depth:
                end += 1
            body = "\n".join(b.text for b in bundles[begin:end])
            trips = _trips(body)
            times[begin:end] = [n * trips for n in times[begin:end]]
    return times


def _trips(body: str) -> int:
    tests = _EXIT.findall(body)
    steps = [re.search(rf"{name}_s\d+ = sadd\.s32 (\d+),", body) for name, _ in tests]
    if len(tests) != 1 or steps[0] is None:
        raise BundlesError("an inner loop without a constant number of turns")
    return -(-int(tests[0][1]) // int(steps[0][1]))


def _skips(bundles: list[Bundle]) -> list[tuple[int, int]]:
    """Return the stretches [begin, end) that a branch of the grid's loop skips."""
    targets = {}
    for i, b in enumerate(bundles):
        if b.label == "PF":
            for region in re.findall(r"Start/End empty region (\d+)", b.text):
                targets[region] = i
    stretches = []
    for i, b in enumerate(bundles):
        match = _SKIP.search(b.text) if b.depth == 1 else None
        if match and targets.get(match[1], 0) > i + DELAY_SLOTS:
            stretches.append((i + 1 + DELAY_SLOTS, targets[match[1]]))
    return stretches


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _has(bundles: list[Bundle], stretch: tuple[int, int], word: str) -> bool:
    return any(word in b.text for b in bundles[slice(*stretch)])


def _main(kernel: str, chip: str, *shapes: str) -> None:
    kind, build = KERNELS[kernel]
    for written in shapes:
        build(chip, kind.read(json.loads(written)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
