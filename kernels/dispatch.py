"""Dispatch of a call to one of a kernel's forms.

`auto` takes a GPU kernel only where it was measured to be faster than XLA
(experiments/reports/accelerator_day.md).
"""

from typing import NamedTuple

AUTO, PALLAS, XLA = "auto", "pallas", "xla"
KERNELS = (AUTO, PALLAS, XLA)
TPU, GPU = "tpu", "gpu"
INTERPRET = "interpret"  # the TPU form where there is no accelerator
HOPPER = "hopper"  # the platform of Hopper GPUs; "gpu" is that of others


class Choice(NamedTuple):
    """The form of a call, and the reason."""

    form: str  # TPU | GPU | INTERPRET | XLA
    why: str


def choose(kernel: str, platform: str, against: str, measured: bool = False) -> Choice:
    """Choose the form of a call.

    Args:
        kernel: one of `KERNELS`.
        platform: as of `block_traffic.platform`.
        against: why the GPU kernel cannot take the call; "" if it can.
        measured: whether the GPU kernel was measured to be the faster one.
    """
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r}: use one of {KERNELS}")
    if kernel == XLA:
        return Choice(XLA, "asked for")
    if platform == TPU:
        return Choice(TPU, "Pallas kernel")
    if kernel == AUTO and not (platform == HOPPER and measured):
        return Choice(XLA, f"no measured kernel for {platform}")
    if platform == HOPPER:
        return Choice(XLA, against) if against else Choice(GPU, "Mosaic GPU kernel")
    if platform == GPU:
        return Choice(XLA, "the GPU kernels are Hopper's")
    return Choice(INTERPRET, f"Pallas asked for on {platform}: interpreted")
