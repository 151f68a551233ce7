"""Topologies: the slices for which programs are compiled.

A topology is `v5e:4x4`, `v5p:2x4x4`, ..., `v5e:1` for one chip, or `cpu:8` for virtual
devices of this machine.
"""

from typing import Any

import jax

from experiments.measurement import machine
from kernels import aot
from kernels.chips import TPUS, Chip
from models.errors import ConfigError

SHARE = (
    0.97  # usable share of the HBM; the runtime and the program itself take the rest
)


def devices(topology: str, memory: int | None = None) -> tuple[Chip, list[Any]]:
    """Return the chip of a topology and its devices.

    `memory`: bytes of a CPU device; None: an equal share of the machine's memory.
    ConfigError names the remedy where the topology cannot be compiled for.
    """
    kind, _, shape = topology.partition(":")
    if kind == "cpu" and shape.isdigit():
        cpus = jax.devices("cpu")
        if len(cpus) < int(shape):
            raise ConfigError(
                f"--topology={topology}: this process has {len(cpus)} CPU devices; "
                "start python -m experiments.preflight, which makes them"
            )
        if memory is None:
            memory = machine.memory() // max(int(shape), 1)
        return Chip("cpu", memory, 0.0, 0.0), cpus[: int(shape)]
    if kind not in TPUS or not shape:
        raise ConfigError(
            f"--topology={topology}: use {sorted(TPUS)} with a shape, as in v5e:4x4 "
            "or v5p:2x4x4, or cpu:N"
        )
    try:
        if set(shape.split("x")) == {"1"}:
            return TPUS[kind], [aot.device(kind)]
        return TPUS[kind], list(aot.slice_of(topology))
    except ImportError as error:
        raise ConfigError(
            f"--topology={topology} needs the TPU compiler: pip install decodax[tpu]"
        ) from error
    except ValueError as error:
        raise ConfigError(f"--topology={topology}: no such slice ({error})") from error
