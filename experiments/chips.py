"""Slices that programs are compiled for, and what their chips can do.

HBM, bandwidth and dense bfloat16 operations of a chip as Google Cloud documents them.
A topology is `v5e:4x4`, `v5p:2x4x4`, ..., `v5e:1` for one chip, or `cpu:8` for virtual
devices of this machine.
"""

from dataclasses import dataclass
from typing import Any

import jax

from experiments import machine
from kernels import aot
from models.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One device of a topology; rates are 0 where nobody knows them."""

    name: str
    hbm: int  # bytes
    bandwidth: float  # bytes a second
    flops: float  # a second, bfloat16

    @property
    def free(self) -> int:
        """Tokens of a block that cost no more than one: operations by byte."""
        return round(self.flops / self.bandwidth) if self.bandwidth else 0


CHIPS = {
    "v4": Chip("v4", 32 * GIB, 1228e9, 275e12),
    "v5e": Chip("v5e", 16 * GIB, 819e9, 197e12),
    "v5p": Chip("v5p", 95 * GIB, 2765e9, 459e12),
    "v6e": Chip("v6e", 32 * GIB, 1640e9, 918e12),
}
SHARE = 0.97  # of the HBM: the runtime and the program itself keep the rest


def devices(topology: str, memory: int | None = None) -> tuple[Chip, list[Any]]:
    """The chip of a topology and its devices.

    `memory` bytes of a CPU device; None: its share of the machine's.
    """
    kind, _, shape = topology.partition(":")
    if kind == "cpu" and shape.isdigit():
        found = jax.devices("cpu")
        if len(found) < int(shape):
            raise ConfigError(
                f"--topology={topology}: this process has {len(found)} CPU devices; "
                "start python -m experiments.preflight, which makes them"
            )
        if memory is None:
            memory = machine.memory() // max(int(shape), 1)
        return Chip("cpu", memory, 0.0, 0.0), found[: int(shape)]
    if kind not in CHIPS or not shape:
        raise ConfigError(
            f"--topology={topology}: use {sorted(CHIPS)} with a shape, as in v5e:4x4 "
            "or v5p:2x4x4, or cpu:N"
        )
    try:
        if set(shape.split("x")) == {"1"}:
            return CHIPS[kind], [aot.device(kind)]
        return CHIPS[kind], list(aot.slice_of(topology))
    except ImportError as error:
        raise ConfigError(
            f"--topology={topology} needs the TPU compiler: pip install decodax[tpu]"
        ) from error
    except ValueError as error:
        raise ConfigError(f"--topology={topology}: no such slice ({error})") from error
