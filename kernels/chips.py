"""Data of chips: HBM, bandwidth, dense bfloat16 operations, interconnect.

Sources: Google Cloud's documentation for TPUs, NVIDIA's data sheets for GPUs (SXM,
without sparsity). A clock is operations / (2 * 128 * 128 * matrix units of the chip).
The v6e's units do more a cycle, so that its clock does not follow: it is unknown.

The interconnect of a TPU is half of "bidirectional inter-chip interconnect bandwidth
per chip" in the pages of v5e (400 GB/s, four ports), v5p (1,200 GB/s) and v6e (800
GB/s, four ports): what a chip sends over all its links. The page of v4 has none; its
"all-reduce bandwidth per Pod", 1.1 PB/s over 4,096 chips, is the same quantity, as it
is on the pages of v5e and v6e. A chip of a 3D torus has six links, of a 2D torus four.
Links of GPUs are not listed: no program is compiled for several.
"""

from dataclasses import dataclass
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One device; unknown rates are 0."""

    name: str
    hbm: int  # bytes
    bandwidth: float  # bytes a second
    flops: float  # a second, bfloat16
    kind: str = ""  # the beginning of jax's `device_kind`
    clock: float = 0.0  # of a TensorCore, Hz
    interconnect: float = 0.0  # bytes a second that it sends over all its links
    links: int = 0  # to neighbours

    @property
    def free(self) -> int:
        """Tokens of a block that cost no more than one: operations per byte."""
        return round(self.flops / self.bandwidth) if self.bandwidth else 0


TPUS = {
    "v4": Chip("v4", 32 * GIB, 1228e9, 275e12, "TPU v4", 1.05e9, 269e9, 6),
    "v5e": Chip("v5e", 16 * GIB, 819e9, 197e12, "TPU v5 lite", 1.5e9, 200e9, 4),
    "v5p": Chip("v5p", 95 * GIB, 2765e9, 459e12, "TPU v5", 1.75e9, 600e9, 6),
    "v6e": Chip("v6e", 32 * GIB, 1640e9, 918e12, "TPU v6 lite", 0.0, 400e9, 4),
}
GPUS = {
    "a100": Chip("a100", 80 * GIB, 2039e9, 312e12, "NVIDIA A100"),
    "h100": Chip("h100", 80 * GIB, 3350e9, 989e12, "NVIDIA H100"),
    "h200": Chip("h200", 141 * 10**9, 4800e9, 989e12, "NVIDIA H200"),
}


def of(device: Any) -> Chip | None:
    """Return the chip of a jax device, by its kind; None if it is not listed."""
    known = [*TPUS.values(), *GPUS.values()]
    # The longest name first: "TPU v5 lite" also begins with "TPU v5".
    for chip in sorted(known, key=lambda chip: -len(chip.kind)):
        if device.device_kind.startswith(chip.kind):
            return chip
    return None
