"""The memory traffic of a kernel's blocks, counted from its index maps.

A pipeline fetches an input block when its index differs from the previous step's, and
writes an output block when it changes. The compiler takes a kernel's cost from the
kernel's declaration, so the declaration is made from this count.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl

MIB = 2**20

# Bytes of a core's vector memory, and the share for programs: the compiler needs some.
VMEM = {"v4": 16 * MIB, "v5e": 128 * MIB, "v5p": 64 * MIB, "v6e": 128 * MIB}
SHARE = 15 / 16
CORES = {"v4": 2, "v5p": 2}  # of a chip that appears as one device; of others 1


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of a kernel call and its blocks; `buffers` of them are in flight.

    Without an index map the array stays in HBM, and the kernel copies the blocks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    block: tuple[int, ...]
    index: Callable | None  # (*grid indices, *scalars) -> block index
    buffers: int = 2

    @property
    def spec(self) -> pl.BlockSpec:
        if self.index is None:
            return pl.BlockSpec(memory_space=pl.ANY)
        if self.buffers == 2:
            return pl.BlockSpec(self.block, self.index)
        mode = pl.Buffered(self.buffers)
        return pl.BlockSpec(self.block, self.index, pipeline_mode=mode)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def vmem(self) -> int:
        return self.buffers * vmem_bytes(self.block, self.dtype)


def vmem_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Return the bytes of a block in vector memory.

    Its tiles are 32 bytes deep and 128 elements wide.
    """
    size = np.dtype(dtype).itemsize
    *outer, rows, lanes = (1, *shape) if len(shape) == 1 else shape
    deep = 8 if rows == 1 else 32 // size
    tiles = math.prod(outer) * (-(-rows // deep) * deep) * (-(-lanes // 128) * 128)
    return tiles * size


def traffic(grid: tuple[int, ...], operands: list[Operand], *scalars: Any) -> dict:
    """Count the bytes moved for each operand, by name, for these prefetched scalars.

    Of a block that reaches past the end of an array, only the part inside counts. An
    operand without an index map is left out.
    """
    steps = np.indices(grid).reshape(len(grid), -1)
    moved = {}
    for operand in operands:
        if operand.index is None:
            continue
        at = operand.index(*steps, *(np.asarray(s) for s in scalars))
        at = np.stack([np.broadcast_to(np.asarray(i), steps.shape[1]) for i in at])
        fresh = np.ones(steps.shape[1], bool)
        fresh[1:] = (at[:, 1:] != at[:, :-1]).any(0)
        full = np.array(operand.block)[:, None]
        inside = np.array(operand.shape)[:, None] - at[:, fresh] * full
        elements = np.minimum(full, inside).prod(0).sum()
        moved[operand.name] = int(elements) * operand.itemsize
    return moved


def budget(chip: str) -> int:
    """Return the bytes of vector memory that a program may use on `chip`."""
    return int(VMEM[chip] * SHARE)


_CHIP: contextvars.ContextVar[str] = contextvars.ContextVar("chip", default="")


@contextlib.contextmanager
def compiling_for(chip: str) -> Iterator[None]:
    """Trace for the TPU `chip` instead of this machine; "" for this machine."""
    token = _CHIP.set(chip)
    try:
        yield
    finally:
        _CHIP.reset(token)


def platform() -> str:
    """Return "cpu", "tpu", "gpu", or "hopper" for the GPUs of that kind."""
    if _CHIP.get():
        return "tpu"
    backend = jax.default_backend()
    if backend == "gpu":
        capability = getattr(jax.devices()[0], "compute_capability", "")
        return "hopper" if capability.startswith("9.") else backend
    return backend


def vmem_here(interpret: bool) -> int:
    """Return the bytes of vector memory that a program may use on this chip."""
    if interpret:
        return budget("v4")
    if _CHIP.get():
        return budget(_CHIP.get())
    from jax.experimental.pallas import tpu as pltpu

    return int(pltpu.get_tpu_info().vmem_capacity_bytes * SHARE)


def cores_here(interpret: bool) -> int:
    """Return the cores that share a call on this chip."""
    if interpret:
        return CORES["v4"]
    if _CHIP.get():
        return CORES.get(_CHIP.get(), 1)
    from jax.experimental.pallas import tpu as pltpu

    return int(pltpu.get_tpu_info().num_cores)
