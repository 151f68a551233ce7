"""Training speed: tokens a second, and model FLOPs utilisation (MFU).

MFU is the operations of a step's products over the time and the devices' rate
(Chowdhery et al., *PaLM*, 2022, arXiv 2204.02311, appendix B). The operations are
counted in the step's program, without recomputation in the backward pass. The rate is a
chip's dense bfloat16 rate. For devices that `kernels/chips.py` does not list, such as a
CPU, it is the best rate of a large product of the step's dtype, measured here.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from kernels import chips
from models.transformer import rematerialisation

SIDE = 2048  # of the matrices that are timed
REPEATS = 5
FIGURES = ("seconds_per_step", "tokens_per_s", "flops_per_s", "mfu")


class Work(NamedTuple):
    """The tokens and operations of one step."""

    tokens: int
    operations: float  # of products, on all devices
    rate: float  # operations a second that all devices could do

    def row(self, seconds: float) -> dict[str, float]:
        """Compute the figures of a step of `seconds`."""
        flops = self.operations / seconds
        values = (seconds, self.tokens / seconds, flops, flops / self.rate)
        return dict(zip(FIGURES, values, strict=True))


def work(step: Callable, *args: Any, tokens: int, dtype: Any, devices: int) -> Work:
    """Count a step's work on its arguments or their shapes, computed in `dtype`."""
    with rematerialisation.off():
        # A new function, because a trace with recomputation may be cached.
        jaxpr = jax.make_jaxpr(lambda *args: step(*args))(*args)
    return Work(tokens, operations(jaxpr.jaxpr), rate(jnp.dtype(dtype).name, devices))


def operations(jaxpr: core.Jaxpr) -> float:
    """Count multiplications and additions of the products of a program.

    A loop counts as often as it runs, or once where its length is dynamic. Of branches
    the costliest counts. A `shard_map`'s program counts once for each device.
    """
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left, out = _shape(eqn.invars[0]), _shape(eqn.outvars[0])
            depth = math.prod(left[i] for i in contracted)
            total += 2.0 * depth * math.prod(out)
            continue
        inner = [operations(part) for part in _parts(eqn.params)]
        if eqn.primitive.name == "cond":
            total += max(inner)
            continue
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        if eqn.primitive.name == "shard_map":
            times = eqn.params["mesh"].size
        total += times * sum(inner)
    return total


def _shape(var: Any) -> tuple[int, ...]:
    return var.aval.shape


def _parts(params: dict[str, Any]) -> Iterator[core.Jaxpr]:
    """Yield the programs inside an equation."""
    for x in jax.tree.leaves(params, is_leaf=_program):
        if isinstance(x, core.ClosedJaxpr):
            yield x.jaxpr
        elif isinstance(x, core.Jaxpr):
            yield x


def _program(x: Any) -> bool:
    return isinstance(x, (core.Jaxpr, core.ClosedJaxpr))


@functools.cache
def rate(dtype: str, devices: int) -> float:
    """Return operations a second of `devices`; on CPUs, of all processes' cores."""
    chip = chips.of(jax.local_devices()[0])
    if chip is not None:
        return devices * chip.flops
    matrix = jnp.ones((SIDE, SIDE), dtype)
    product = jax.jit(jnp.dot)
    product(matrix, matrix).block_until_ready()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return jax.process_count() * 2.0 * SIDE**3 / min(seconds)
