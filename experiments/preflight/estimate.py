"""The time of a step, from what the compiler's program does.

A chip has three resources: its core, its HBM and its links.

    time = max(core, HBM, collectives that run beside it) + collectives that wait

A core computes at the chip's peak. Its attention kernels take as long as their
instruction bundles, which the compiler's final program has, in place of the operations
that they declare, where the chip's clock is known. A collective that is one instruction
stands alone in the schedule: the products before it make its operand and those after it
read its result, so its time adds up. One that is started and ended by two instructions
hides behind what stands between them.

It is neither a lower nor an upper bound. Too short: there are no stalls and no starts
of collectives, and a loop's body counts once, as the compiler counts it. Too long: the
compiler's bytes have the whole of an array that a gather or a scatter touches, and
copies within fast memory, and what it began before a collective goes on during it.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kernels import aot, bundles, chips, hlo, interconnect
from kernels.tree_attention import tiling

Cycles = Callable[[str, tiling.Shape], float]


class Times(NamedTuple):
    """Seconds of a step on one device; 0 where the chip's rates are unknown."""

    operations: float  # but those of the attention kernels, if these are counted
    attention: float | None  # of the kernels' bundles; None: as they declare
    memory: float
    waiting: float  # collectives that stand alone
    running: float  # collectives beside other work

    @property
    def step(self) -> float:
        """Seconds of the whole."""
        core = self.operations + (self.attention or 0.0)
        return max(core, self.memory, self.running) + self.waiting


def times(
    text: str,
    flops: float,
    moved: float,
    chip: chips.Chip,
    at: Sequence[tuple[int, ...]],
    cycles: Cycles = bundles.call_cycles,
) -> Times:
    """Estimate the parts of a program's time.

    Args:
        text: of the compiled program.
        flops: that the compiler counts, with those that kernels declare.
        moved: bytes from and to HBM, likewise.
        chip: of the slice.
        at: coordinates of the program's devices, in its order.
        cycles: counts the cycles of a call of tree attention on a chip.
    """
    declared, attention = kernels(text, chip, cycles)
    return Times(
        (flops - declared) / chip.flops if chip.flops else 0.0,
        attention,
        moved / chip.bandwidth if chip.bandwidth else 0.0,
        *interconnect.seconds(hlo.collectives(text), chip, at),
    )


def kernels(text: str, chip: chips.Chip, cycles: Cycles) -> tuple[float, float | None]:
    """Return the declared operations of attention kernels, and their bundles' seconds.

    (0, None) where there are no bundles to count: without a known clock, or without a
    compiler that writes them. Then the declared operations are the estimate.
    """
    calls: collections.Counter[tiling.Shape] = bundles.calls(text)
    if not calls:
        return 0.0, 0.0
    if not chip.clock or chip.name not in aot.TOPOLOGIES:
        return 0.0, None
    try:
        each = {shape: cycles(chip.name, shape) for shape in calls}
    except bundles.BundlesError:
        return 0.0, None
    declared = sum(n * aot.plan(chip.name, s).cost.flops for s, n in calls.items())
    return declared, sum(n * each[s] for s, n in calls.items()) / chip.clock


def coordinates(mesh: Any) -> list[tuple[int, ...]]:
    """Return the coordinates of a mesh's devices; of CPUs they are empty."""
    return [tuple(getattr(device, "coords", ())) for device in mesh.devices.flat]
