"""The forms that a kernel has, and which of them a call takes.

`auto` takes no GPU kernel yet: they have been lowered and interpreted, and not measured
against XLA.
"""

from typing import NamedTuple

AUTO, PALLAS, XLA = "auto", "pallas", "xla"
KERNELS = (AUTO, PALLAS, XLA)
TPU, GPU = "tpu", "gpu"
INTERPRET = "interpret"  # the TPU form where there is no accelerator
HOPPER = "hopper"  # the platform "gpu" where it is one


class Choice(NamedTuple):
    """The form that a call takes, and why."""

    form: str  # TPU | GPU | INTERPRET | XLA
    why: str


def choose(kernel: str, platform: str, against: str) -> Choice:
    """The form on `platform`; `against`: why a Hopper cannot take the call, or ""."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r}: use one of {KERNELS}")
    if kernel == XLA:
        return Choice(XLA, "asked for")
    if platform == TPU:
        return Choice(TPU, "Pallas kernel")
    if kernel == AUTO:
        return Choice(XLA, f"no measured kernel for {platform}")
    if platform == HOPPER:
        return Choice(XLA, against) if against else Choice(GPU, "Mosaic GPU kernel")
    if platform == GPU:
        return Choice(XLA, "the GPU kernels are Hopper's")
    return Choice(INTERPRET, f"Pallas asked for on {platform}: interpreted")
