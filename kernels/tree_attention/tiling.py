"""Tiling of a call of tree attention for a TPU: the blocks, and their cost."""

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from kernels import block_traffic, int4_packing
from kernels.block_traffic import Operand
from kernels.tree_attention import layout

STEP = 2 * block_traffic.MIB  # bytes of keys and values a step reads, at most
SCORES = 2**17  # scores of a chunk and a block, at most
LARGEST = 1024  # slots of a block
PARTS = 32  # of a cache, at least: on average half a block is wasted at a row's end


@dataclasses.dataclass(frozen=True)
class Shape:
    """The static facts of a call."""

    batch: int
    groups: int
    size: int  # S
    dim: int
    nodes: int
    heads: int  # query heads of a KV head
    dtype: Any  # of q and the output
    cache_dtype: Any
    scaled: bool = False
    window: int = 0
    softcap: float = 0.0
    scale: float = 1.0
    page: int = 0  # slots of a page; 0: the cache is one array a row
    pages: int = 0  # of the pool

    @property
    def least_bytes(self) -> int:
        """Bytes of the whole cache, q and the output, each once."""
        each = self.batch * self.groups * self.dim
        cache = 2 * each * self.size * np.dtype(self.cache_dtype).itemsize
        cache //= int4_packing.slots(self.cache_dtype)
        rows = 2 * each * self.nodes * self.heads * np.dtype(self.dtype).itemsize
        return cache + rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tiling of a call: `groups` KV heads and `block` slots a step, in `passes`."""

    shape: Shape
    at: layout.Rows
    groups: int
    block: int
    passes: int
    buffers: int

    @property
    def chunks(self) -> int:
        """Chunks of rows in fast memory at a time, for each KV head."""
        return self.at.chunks // self.passes

    @property
    def grid(self) -> tuple[int, int, int, int]:
        steps = -(-self.shape.size // self.block)
        s = self.shape
        return s.batch, s.groups // self.groups, self.passes, steps

    def inputs(self) -> list[Operand]:
        s, at, bs, gs = self.shape, self.at, self.block, self.groups
        per = int4_packing.slots(s.cache_dtype)
        cache = (s.pages or s.batch, s.groups, (s.page or s.size) // per, s.dim)
        cut = (1, gs, bs // per, s.dim)

        def slots(b, g, p, j, bounds):
            at = current(bounds, b, j, bs)
            if s.page:  # the table follows the bounds
                return bounds[3 + at, b], g, 0, 0
            return b, g, at, 0

        def across(b, g, p, j, bounds):
            return b, g, 0, current(bounds, b, j, bs)

        rows = (s.batch, s.groups, at.chunks, at.rows, s.dim)
        part = (1, gs, self.chunks, at.rows, s.dim)
        operands = [
            Operand("q", rows, s.dtype, part, _rows, self.buffers),
            Operand("k", cache, s.cache_dtype, cut, slots),
            Operand("v", cache, s.cache_dtype, cut, slots),
            self._nodes("bytes", layout.LANES, jnp.bfloat16),
            Operand(
                "union",
                (s.batch, layout.SUBLANES, layout.LANES),
                jnp.bfloat16,
                (1, layout.SUBLANES, layout.LANES),
                lambda b, g, p, j, bounds: (b, 0, 0),
            ),
        ]
        if s.scaled:
            scales, strip = (s.batch, s.groups, 1, s.size), (1, gs, 1, bs)
            operands.append(Operand("k_scale", scales, jnp.float32, strip, across))
            operands.append(Operand("v_scale", scales, jnp.float32, strip, across))
        if s.window:
            operands.append(self._nodes("positions", 1, jnp.int32))
            operands.append(
                Operand(
                    "key_positions",
                    (s.batch, 1, s.size),
                    jnp.int32,
                    (1, 1, bs),
                    lambda b, g, p, j, bounds: (b, 0, current(bounds, b, j, bs)),
                )
            )
        return operands

    def _nodes(self, name: str, width: int, dtype: Any) -> Operand:
        shape = (self.shape.batch, self.at.tiles, self.at.width, width)

        def index(b, g, p, j, bounds):
            return b, 0, 0, 0

        return Operand(name, shape, dtype, (1, *shape[1:]), index, self.buffers)

    def outputs(self) -> list[Operand]:
        s, at = self.shape, self.at
        rows = (s.batch, s.groups, at.chunks, at.rows, s.dim)
        lse = (s.batch, s.groups, at.chunks, 1, at.rows)
        part = (1, self.groups, self.chunks)
        return [
            Operand("out", rows, s.dtype, (*part, at.rows, s.dim), _rows, self.buffers),
            Operand("lse", lse, jnp.float32, (*part, 1, at.rows), _rows, self.buffers),
        ]

    def scratch(self) -> list[tuple[int, ...]]:
        """Return the shapes of float32 scratch arrays.

        They hold each row's running sum; its maximum and total, in lanes 0 and 1.
        """
        many = self.groups * self.chunks
        return [
            (many, self.at.rows, self.shape.dim),
            (many, self.at.rows, layout.LANES),
        ]

    @property
    def vmem(self) -> int:
        """Bytes of vector memory: blocks in flight, scratch, a step's temporaries."""
        fixed = sum(o.vmem for o in self.inputs() + self.outputs())
        fixed += sum(block_traffic.vmem_bytes(s, jnp.float32) for s in self.scratch())
        block, dim = self.block, layout.up(self.shape.dim, layout.LANES)
        scores = 5 * self.at.rows * block * 4
        spreads = 3 * layout.LANES * block * 4
        return fixed + scores + spreads + 3 * block * dim * 4 + block_traffic.MIB // 2

    def bounds_at(self, lengths: Any, nodes: int | None = None) -> np.ndarray:
        """Return the prefetched scalars of rows of these lengths that see all slots."""
        nodes = self.shape.nodes if nodes is None else nodes
        lengths = np.asarray(lengths)
        last = np.minimum(lengths + nodes, self.shape.size)
        scalars = [lengths, 0 * lengths, last]
        if self.shape.page:  # each row in pages of its own
            columns = self.shape.size // self.shape.page
            table = np.arange(len(lengths) * columns).reshape(len(lengths), columns)
            scalars += list(table.T % self.shape.pages)
        return np.stack(scalars).astype(np.int32)

    def traffic(self, bounds: Any) -> dict[str, int]:
        """Count the bytes moved, by array, for these bounds."""
        return block_traffic.traffic(self.grid, self.inputs() + self.outputs(), bounds)

    @functools.cached_property
    def cost(self) -> pl.CostEstimate:
        """The cost of a call when every row fills the cache: lengths are not static."""
        full = self.bounds_at(np.full(self.shape.batch, self.shape.size))
        s = self.shape
        scores = s.batch * s.groups * self.at.chunks * self.at.rows * s.size
        return pl.CostEstimate(
            flops=4 * scores * s.dim,
            transcendentals=scores,
            bytes_accessed=sum(self.traffic(full).values()),
        )


def _rows(b, g, p, j, bounds):
    return b, g, p, 0, 0


def current(bounds: Any, b: Any, j: Any, block: int) -> Any:
    """Return the block of slots of step `j`: from the row's first to its last.

    Further steps return the last block again.
    """
    # `//` on traced integers queries the chip, which some lowerings do not have.
    counted = isinstance(bounds, np.ndarray)
    least, most = (np.minimum, np.maximum) if counted else (jnp.minimum, jnp.maximum)
    divide: Any = np.floor_divide if counted else lax.div
    first = divide(bounds[1, b], np.int32(block))
    end = divide(bounds[2, b] + np.int32(block - 1), np.int32(block))
    return most(least(first + j, end - 1), 0)


def plan(shape: Shape, vmem: int) -> Plan:
    """Choose the tiling that reads the cache least often and moves most bytes a step.

    It must fit `vmem` bytes of vector memory.
    """
    at = layout.rows(shape.nodes, shape.heads)
    item = np.dtype(shape.cache_dtype).itemsize
    slot = 2 * layout.up(shape.dim, layout.LANES) * item
    slot //= int4_packing.slots(shape.cache_dtype)
    largest = min(LARGEST, SCORES // at.rows, max(layout.LANES, shape.size // PARTS))
    sizes = [b for b in (1024, 512, 256, 128) if b <= largest]
    if shape.size <= layout.LANES:
        sizes = [shape.size]
    if shape.page:
        sizes = [shape.page]
    steps = [
        (groups, block)
        for groups in _divisors(shape.groups)
        for block in sizes
        if groups * block * slot <= STEP or groups == 1
    ]
    steps.sort(key=lambda step: (step[0] * step[1], step[0]), reverse=True)
    for passes in _divisors(at.chunks):
        for buffers in (2, 1):
            for groups, block in steps:
                candidate = Plan(shape, at, groups, block, passes, buffers)
                if candidate.vmem <= vmem:
                    return candidate
    raise ValueError(
        f"{shape} does not fit {vmem} bytes of vector memory: use kernel='xla'"
    )


def _divisors(x: int) -> list[int]:
    return [i for i in range(1, x + 1) if x % i == 0]
