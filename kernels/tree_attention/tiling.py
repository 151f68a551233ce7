"""Tiling of a call of tree attention for a TPU: the blocks, and their cost."""

import dataclasses
import functools
import itertools
import json
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels import block_traffic, int4_packing
from kernels.block_traffic import Operand
from kernels.tree_attention import layout

STEP = 2 * block_traffic.MIB  # bytes of keys and values a step reads, at most
SCORES = 2**18  # scores of a chunk and a block, at most
SMALL = block_traffic.MIB // 2  # a step's bytes, if it need not be less
LARGEST = 1024  # slots of a block
PARTS = 32  # of a cache, at least: on average half a block is wasted at a row's end

DTYPES = ("dtype", "cache_dtype")
FEWEST = 8  # parts of a cache whose parts would be small


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
    biased: bool = False

    def written(self) -> dict[str, str]:
        """Return the fields as texts, from which `read` makes the shape again."""
        fields = dataclasses.asdict(self)
        names = {name: np.dtype(fields[name]).name for name in DTYPES}
        return {name: json.dumps(value) for name, value in {**fields, **names}.items()}

    @classmethod
    def read(cls, written: dict[str, str]) -> "Shape":
        """Make a shape of its fields as texts."""
        fields = {name: json.loads(value) for name, value in written.items()}
        return cls(**{**fields, **{n: jnp.dtype(fields[n]) for n in DTYPES}})

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
    """The tiling of a call: `groups` KV heads and `block` slots a step, in `passes`.

    A row's maximum and total have 128 lanes each if `replicated`, which spares moves
    across lanes in every step; else a lane each.
    """

    shape: Shape
    at: layout.Rows
    groups: int
    block: int
    passes: int
    buffers: int
    replicated: bool = True
    cores: int = 1  # that have rows of their own

    @property
    def chunks(self) -> int:
        """Chunks of rows in fast memory at a time, for each KV head."""
        return self.at.chunks // self.passes

    @property
    def blocks(self) -> int:
        """Blocks of a row's cache."""
        return -(-self.shape.size // self.block)

    @property
    def piece(self) -> int:
        """Slots side by side in memory: of a block and of a page."""
        return math.gcd(self.block, self.shape.page)

    @property
    def pieces(self) -> int:
        """Pieces of a block."""
        return self.block // self.piece

    def needed(self, start: Any, end: Any) -> Any:
        """Return how many pieces of the block at slot `start` begin before `end`."""
        xp = _arrays(start)
        slots = xp.clip(end - start, 0, self.block)
        return divide(slots + self.piece - 1, self.piece)

    @property
    def most(self) -> int:
        """Steps of a core that reads every block of its rows."""
        return -(-self.shape.batch // self.cores) * self.blocks + self.lead

    @property
    def lead(self) -> int:
        """Steps before the first block's, which start its copy: 1 for pages."""
        return 1 if self.shape.page else 0

    def grid(self, counts: Any) -> tuple:
        """Return the grid of cores that have `counts` int32[cores] steps."""
        heads = self.shape.groups // self.groups
        return self.cores, heads, self.passes, counts.max()

    def scalars(self, bounds: Any) -> tuple[Any, ...]:
        """Return the prefetched scalars: the bounds and the steps of every core.

        Core c has the rows c, c + cores, and so on. A row has a step for each block
        from its first slot's to its last's, and one if it has no slot. The first is
        there `lead` times more.

        Args:
            bounds: int32[3 or more, B], from `layout.bounds`.

        Returns:
            `bounds`; the row and the block of each step, int32[cores * most] each, the
            last step's again where a core has fewer; int32[cores], the steps of each.
        """
        xp: Any = _arrays(bounds)
        rows, blocks, counts = [], [], []
        for core in range(self.cores):
            mine = slice(core, None, self.cores)
            first, last = self.ends(bounds[1, mine], bounds[2, mine])
            behind = xp.cumsum(last - first + 1)
            ahead = behind - (last - first + 1)
            step = xp.arange(self.most)[:, None] - self.lead
            step = xp.clip(step, 0, behind[-1] - 1)
            # Sums over the one row that holds the step: no gather, no loop.
            holds = (ahead <= step) & (step < behind)
            rows.append((holds * xp.arange(self.shape.batch)[mine]).sum(1))
            blocks.append((holds * (first + step - ahead)).sum(1))
            counts.append(behind[-1] + self.lead)
        lists = (xp.concatenate(rows), xp.concatenate(blocks), xp.stack(counts))
        return bounds, *(x.astype(jnp.int32) for x in lists)

    def ends(self, first: Any, end: Any) -> tuple[Any, Any]:
        """Return the first and the last block of rows that have slots [first, end)."""
        xp = _arrays(first)
        first = xp.minimum(divide(first, self.block), self.blocks - 1)
        return first, xp.maximum(divide(end + self.block - 1, self.block) - 1, first)

    @property
    def step_bytes(self) -> int:
        """Bytes of keys and values that a step reads."""
        s = self.shape
        slots = self.block // int4_packing.slots(s.cache_dtype)
        return 2 * self.groups * slots * s.dim * np.dtype(s.cache_dtype).itemsize

    def inputs(self) -> list[Operand]:
        s, at, bs, gs = self.shape, self.at, self.block, self.groups
        per = int4_packing.slots(s.cache_dtype)
        cache = (s.batch, s.groups, s.size // per, s.dim)
        cut = (1, gs, bs // per, s.dim)

        def slots(c, g, p, t, bounds, rows, blocks, *_):
            return rows[c * self.most + t], g, blocks[c * self.most + t], 0

        def across(c, g, p, t, bounds, rows, blocks, *_):
            return rows[c * self.most + t], g, 0, blocks[c * self.most + t]

        def cached(name):
            return Operand(name, cache, s.cache_dtype, cut, slots)

        rows = (s.batch, s.groups, at.chunks, at.rows, s.dim)
        part = (1, gs, self.chunks, at.rows, s.dim)
        operands = [
            Operand("q", rows, s.dtype, part, self._rows, self.buffers),
            *(self.copied() or [cached("k"), cached("v")]),
            # Of the nodes of a tile, and behind them of their union.
            self._nodes("bytes", layout.LANES, jnp.bfloat16, layout.SUBLANES),
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
                    lambda *at: across(*at)[:1] + (0, across(*at)[3]),
                )
            )
        if s.biased:
            added, strip = (s.batch, s.groups, 1, s.size), (1, gs, 1, bs)
            operands.append(Operand("bias", added, jnp.float32, strip, across))
        return operands

    def copied(self) -> list[Operand]:
        """Return the keys and values that the kernel copies itself: of pages."""
        s = self.shape
        pool = (s.pages, s.groups, s.page, s.dim)
        block = (self.pieces, self.groups, self.piece, s.dim)
        names = ("k", "v") if s.page else ()
        return [Operand(name, pool, s.cache_dtype, block, None) for name in names]

    def _nodes(self, name: str, width: int, dtype: Any, more: int = 0) -> Operand:
        shape = (self.shape.batch, self.at.tiles, self.at.width + more, width)

        def index(c, g, p, t, bounds, rows, *_):
            return rows[c * self.most + t], 0, 0, 0

        return Operand(name, shape, dtype, (1, *shape[1:]), index, self.buffers)

    def _rows(self, c, g, p, t, bounds, rows, *_):
        return rows[c * self.most + t], g, p, 0, 0

    def outputs(self) -> list[Operand]:
        s, at = self.shape, self.at
        rows = (s.batch, s.groups, at.chunks, at.rows, s.dim)
        lse = (s.batch, s.groups, at.chunks, 1, at.rows)
        part = (1, self.groups, self.chunks)
        return [
            Operand(
                "out", rows, s.dtype, (*part, at.rows, s.dim), self._rows, self.buffers
            ),
            Operand(
                "lse", lse, jnp.float32, (*part, 1, at.rows), self._rows, self.buffers
            ),
        ]

    def scratch(self) -> list[tuple[int, ...]]:
        """Return the shapes of float32 scratch arrays.

        They hold each row's running sum; its maximum and its total.
        """
        rows = (self.groups * self.chunks, self.at.rows)
        lanes = layout.LANES * (2 if self.replicated else 1)
        return [(*rows, self.shape.dim), (*rows, lanes)]

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
        """Return the bounds of rows of these lengths that see all slots."""
        nodes = self.shape.nodes if nodes is None else nodes
        lengths = np.asarray(lengths)
        last = np.minimum(lengths + nodes, self.shape.size)
        bounds = [lengths, 0 * lengths, last, 0 * lengths]
        return np.stack(bounds).astype(np.int32)

    def traffic(self, bounds: Any) -> dict[str, int]:
        """Count the bytes moved, by array, for these bounds."""
        scalars = self.scalars(bounds)
        operands = self.inputs() + self.outputs()
        moved = block_traffic.traffic(self.grid(scalars[-1]), operands, *scalars)
        start = self.ends(bounds[1], bounds[2])[0] * self.block
        pieces = -(-np.maximum(bounds[2] - start, 0) // self.piece).sum()
        for o in self.copied():  # whole pieces, of every KV head, in each pass
            size = self.shape.groups * self.piece * self.shape.dim * o.itemsize
            moved[o.name] = int(pieces) * size * self.passes
        return moved

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


def _arrays(x: Any) -> Any:
    """Return the library of an array: numpy where bytes are counted, else jax's."""
    return np if isinstance(x, np.ndarray) else jnp


def divide(x: Any, by: int) -> Any:
    """Divide integers of 0 or more, traced or not; by a power of two with a shift.

    The compiler does not know the sign: its division takes several operations more.
    """
    if by & (by - 1) == 0:
        return x >> (by.bit_length() - 1)
    # `//` on traced integers queries the chip, which some lowerings do not have.
    return lax.div(x, np.int32(by)) if isinstance(x, Array) else x // by


def plan(shape: Shape, vmem: int, cores: int = 1) -> Plan:
    """Choose the tiling that reads the cache least often and moves most bytes a step.

    It must fit `vmem` bytes of vector memory. The `cores` of a chip share the rows; of
    one row, the KV heads.
    """
    at = layout.rows(shape.nodes, shape.heads)
    item = np.dtype(shape.cache_dtype).itemsize
    slot = 2 * layout.up(shape.dim, layout.LANES) * item
    slot //= int4_packing.slots(shape.cache_dtype)
    longest = min(SMALL // (shape.groups * slot), shape.size // FEWEST)
    longest = max(layout.LANES, shape.size // PARTS, longest)
    largest = min(LARGEST, SCORES // at.rows, longest)
    sizes = [b for b in (1024, 512, 256, 128) if b <= largest]
    if shape.size <= layout.LANES:
        sizes = [shape.size]
    shared = max(1, shape.groups // cores) if shape.batch == 1 else shape.groups
    steps = [
        (groups, block)
        for groups in _divisors(shape.groups)
        for block in sizes
        if groups <= shared and (groups * block * slot <= STEP or groups == 1)
    ]
    steps.sort(key=lambda step: (step[0] * step[1], step[0]), reverse=True)
    many = itertools.product(_divisors(at.chunks), (True, False), (2, 1), steps)
    for passes, replicated, buffers, (groups, block) in many:
        candidate = Plan(
            shape,
            at,
            groups,
            block,
            passes,
            buffers,
            replicated,
            min(cores, shape.batch),
        )
        if candidate.vmem <= vmem:
            return candidate
    raise ValueError(
        f"{shape} does not fit {vmem} bytes of vector memory: use kernel='xla'"
    )


def _divisors(x: int) -> list[int]:
    return [i for i in range(1, x + 1) if x % i == 0]
