"""Tiling of calls over a vocabulary for a TPU: the blocks, and their cost."""

import dataclasses
import functools
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from kernels import block_traffic
from kernels.block_traffic import Operand

LANES = 128
NODES = 256  # of a step, at most
STEP = 2**18  # logits of a step, at most
CHUNK = 4096  # tokens that a search reads together


@dataclasses.dataclass(frozen=True)
class Shape:
    """The static facts of a call over logits [batch, nodes, vocab]."""

    batch: int
    nodes: int
    vocab: int
    dtype: Any
    tokens: int = 0  # M: tokens to score
    noises: int = 0  # P: rows of noise for each row of the batch; 0: none
    shared: bool = True  # nodes share noise by depth; else each has its own

    @property
    def least_bytes(self) -> int:
        """Bytes of the logits and the noise, each once."""
        each = self.nodes * np.dtype(self.dtype).itemsize + 4 * self.noises
        return self.batch * self.vocab * each


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tiling of a call: `nodes` nodes and `block` tokens a step."""

    shape: Shape
    nodes: int
    block: int

    @property
    def grid(self) -> tuple[int, int, int]:
        s = self.shape
        return s.batch, -(-s.nodes // self.nodes), -(-s.vocab // self.block)

    def column(self, name: str, dtype: Any, width: int = 1) -> Operand:
        """Make the operand of an array with `width` entries a node, `[B, N, width]`."""
        s = self.shape
        part = (1, self.nodes, width)
        return Operand(name, (s.batch, s.nodes, width), dtype, part, _nodes)

    def wide(self, name: str, dtype: Any) -> Operand:
        """Make the operand of an array `[B, N, V]`."""
        s = self.shape
        part = (1, self.nodes, self.block)
        return Operand(name, (s.batch, s.nodes, s.vocab), dtype, part, _blocks)

    def noise(self) -> Operand:
        s = self.shape
        if not s.shared:
            return self.wide("noise", jnp.float32)
        whole = (s.batch, s.noises, s.vocab)
        part = (1, s.noises, self.block)
        return Operand("noise", whole, jnp.float32, part, lambda b, n, v: (b, 0, v))

    def inputs(self) -> list[Operand]:
        s = self.shape
        operands = [
            self.wide("logits", s.dtype),
            self.column("temperature", jnp.float32),
        ]
        if s.tokens:
            operands.append(self.column("tokens", jnp.int32, s.tokens))
        if s.noises:
            operands.append(self.noise())
            if s.shared:
                operands.append(self.column("depth", jnp.int32))
        return operands

    def outputs(self) -> list[Operand]:
        s = self.shape
        operands = [
            self.column("best", jnp.int32),
            self.column("top", jnp.float32),
            self.column("lse", jnp.float32),
        ]
        if s.tokens:
            operands.append(self.column("scores", jnp.float32, s.tokens))
        if s.noises:
            operands.append(self.column("drawn", jnp.int32))
            operands.append(self.column("race", jnp.float32))
        return operands

    @property
    def vmem(self) -> int:
        """Bytes of vector memory: blocks in flight and a step's temporaries."""
        fixed = sum(o.vmem for o in self.inputs() + self.outputs())
        temporaries = 6 * block_traffic.vmem_bytes(
            (self.nodes, self.block), jnp.float32
        )
        return fixed + temporaries + block_traffic.MIB // 2

    def traffic(self) -> dict[str, int]:
        """Count the bytes moved, by array."""
        return block_traffic.traffic(self.grid, self.inputs() + self.outputs())

    @functools.cached_property
    def cost(self) -> pl.CostEstimate:
        many = self.shape.batch * self.shape.nodes * self.shape.vocab
        return pl.CostEstimate(
            flops=8 * many,
            transcendentals=many,
            bytes_accessed=sum(self.traffic().values()),
        )


@dataclasses.dataclass(frozen=True)
class RestPlan(Plan):
    """The tiling of a call over two laws; every node has its own `noise`."""

    def inputs(self) -> list[Operand]:
        s = self.shape
        return [
            self.wide("p", s.dtype),
            self.wide("q", s.dtype),
            self.column("p_lse", jnp.float32),
            self.column("q_lse", jnp.float32),
            self.wide("noise", jnp.float32),
        ]

    def outputs(self) -> list[Operand]:
        kinds = {"drawn": jnp.int32, "race": jnp.float32, "mass": jnp.float32}
        kinds |= {"spare": jnp.int32, "spare_race": jnp.float32}
        return [self.column(name, dtype) for name, dtype in kinds.items()]


@dataclasses.dataclass(frozen=True)
class SearchPlan(Plan):
    """The tiling of a search: whole rows are read once, then scanned 64 times."""

    buffers: int = 2

    def inputs(self) -> list[Operand]:
        logits = dataclasses.replace(
            self.wide("logits", self.shape.dtype), buffers=self.buffers
        )
        return [logits, self.column("k", jnp.int32), self.column("mass", jnp.float32)]

    def outputs(self) -> list[Operand]:
        return [self.column("first", jnp.float32), self.column("second", jnp.float32)]

    @property
    def vmem(self) -> int:
        fixed = sum(o.vmem for o in self.inputs() + self.outputs())
        temporaries = 8 * block_traffic.vmem_bytes((self.nodes, CHUNK), jnp.float32)
        return fixed + temporaries + block_traffic.MIB // 2

    @functools.cached_property
    def cost(self) -> pl.CostEstimate:
        many = self.shape.batch * self.shape.nodes * self.shape.vocab
        return pl.CostEstimate(
            flops=64 * 4 * many,
            transcendentals=33 * many,
            bytes_accessed=sum(self.traffic().values()),
        )


P = TypeVar("P", bound=Plan)


def _nodes(b: Any, n: Any, v: Any) -> tuple:
    return b, n, 0


def _blocks(b: Any, n: Any, v: Any) -> tuple:
    return b, n, v


def plan(shape: Shape, vmem: int) -> Plan:
    """Choose the tiling with the most logits a step that fits `vmem` bytes."""
    return _largest(Plan, shape, vmem)


def plan_rest(shape: Shape, vmem: int) -> RestPlan:
    """Choose the tiling of a residual; see `plan`."""
    return _largest(RestPlan, shape, vmem)


def _largest(kind: type[P], shape: Shape, vmem: int) -> P:
    nodes = min(NODES, shape.nodes)
    if nodes < shape.nodes:
        nodes = -(-nodes // 16) * 16
    block = STEP // nodes
    while block >= LANES:
        size = block // LANES * LANES
        candidate = kind(shape, nodes, shape.vocab if shape.vocab <= size else size)
        if candidate.vmem <= vmem:
            return candidate
        block //= 2
    raise ValueError(f"{shape} does not fit {vmem} bytes of vector memory")


def plan_search(shape: Shape, vmem: int) -> SearchPlan:
    """Choose the tiling of a search: 8 rows a step (16 of two bytes).

    It has two buffers where they fit.
    """
    deep = 32 // np.dtype(shape.dtype).itemsize
    nodes = min(deep, shape.nodes)
    for buffers in (2, 1):
        candidate = SearchPlan(shape, nodes, shape.vocab, buffers)
        if candidate.vmem <= vmem:
            return candidate
    raise ValueError(f"{shape} does not fit {vmem} bytes of vector memory")
