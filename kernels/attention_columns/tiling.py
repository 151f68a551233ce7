"""Tiling of column sums for a TPU: the blocks, and what they move."""

import dataclasses
import functools
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from kernels import block_traffic
from kernels.block_traffic import Operand
from kernels.tree_attention import layout
from kernels.tree_attention.tiling import FEWEST, LARGEST, SCORES, SMALL, STEP

DTYPES = ("dtype", "key_dtype")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The static facts of a call."""

    batch: int
    groups: int
    size: int  # S
    dim: int
    queries: int  # M
    heads: int  # query heads of a KV head
    dtype: Any  # of q
    key_dtype: Any
    known: bool = False  # `lse` is given
    largest: bool = False  # reduce="max"
    softcap: float = 0.0
    biased: bool = False
    sunk: bool = False  # sinks take part in what is not `known`

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
    def held(self) -> tuple[int, int, int, int]:
        """The shape of the keys' array."""
        return self.batch, self.groups, self.size, self.dim

    @property
    def key_bytes(self) -> int:
        """Bytes of all keys, once."""
        slots = self.batch * self.groups * self.size
        return slots * self.dim * np.dtype(self.key_dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tiling of a call: `groups` KV heads and `block` slots a step.

    The queries of a KV head's query heads are rows, in `chunks` of `rows` each.
    """

    shape: Shape
    groups: int
    block: int

    @property
    def chunks(self) -> int:
        return -(-self.shape.queries * self.shape.heads // layout.ROWS)

    @property
    def rows(self) -> int:
        count = -(-self.shape.queries * self.shape.heads // self.chunks)
        return layout.up(count, layout.SUBLANES)

    @property
    def blocks(self) -> int:
        """Blocks of a row's cache."""
        return -(-self.shape.size // self.block)

    @property
    def sweeps(self) -> int:
        """Sweeps over the keys: the first finds what is not `known`."""
        return 1 if self.shape.known else 2

    @property
    def grid(self) -> tuple[int, int, int, int]:
        s = self.shape
        return s.batch, s.groups // self.groups, self.sweeps, self.blocks

    @property
    def step_bytes(self) -> int:
        """Bytes of keys that a step reads."""
        size = np.dtype(self.shape.key_dtype).itemsize
        return self.groups * self.block * self.shape.dim * size

    def inputs(self) -> list[Operand]:
        s, gs, bs = self.shape, self.groups, self.block
        lanes = (s.batch, s.groups, 1, s.size)
        strip = (1, gs, 1, bs)
        rows = (s.batch, s.groups, self.chunks, self.rows, s.dim)
        less = (s.batch, s.groups, self.chunks, 1, self.rows)
        limit = (s.batch, self.chunks, 1, self.rows)

        def slots(b, g, sweep, t, ends):
            return b, g, self._needed(b, g, t, ends), 0

        def across(b, g, sweep, t, ends):
            return b, g, 0, self._needed(b, g, t, ends)

        def whole(b, g, *_):
            return b, g, 0, 0, 0

        operands = [
            Operand("q", rows, s.dtype, (1, gs, *rows[2:]), whole),
            Operand("k", s.held, s.key_dtype, (1, gs, bs, s.dim), slots),
            Operand("held", lanes, jnp.int32, strip, across),
            Operand("less", less, jnp.float32, (1, gs, *less[2:]), whole),
            Operand(
                "limit",
                limit,
                jnp.int32,
                (1, *limit[1:]),
                lambda b, *_: (b,) + (0,) * 3,
            ),
        ]
        if s.biased:
            operands.append(Operand("bias", lanes, jnp.float32, strip, across))
        if s.sunk:
            operands.append(
                Operand("sinks", less, jnp.float32, (1, gs, *less[2:]), whole)
            )
        return operands

    def outputs(self) -> list[Operand]:
        s = self.shape

        def slots(b, g, sweep, t, ends):
            # Of the first sweep none is written: it stays at the second's first block.
            return b, g, 0, t * (sweep == self.sweeps - 1)

        shape, block = (s.batch, s.groups, 1, s.size), (1, self.groups, 1, self.block)
        return [Operand("sums", shape, jnp.float32, block, slots)]

    def _needed(self, b: Any, g: Any, t: Any, ends: Any) -> Any:
        """Return the block that step t needs; past the row's last, the last again."""
        xp: Any = np if isinstance(t, np.ndarray) else jnp
        last = ends[b * (self.shape.groups // self.groups) + g] - 1
        return xp.minimum(t, xp.maximum(last, 0))

    def scratch(self) -> list[tuple[tuple[int, ...], Any]]:
        """Return the shapes and dtypes of scratch arrays.

        Of each row, in every lane: what is subtracted from its scores, and its
        position. Where the first is not known: the running maximum and total.
        """
        rows, lanes = (self.groups * self.chunks, self.rows), layout.LANES
        arrays: list[tuple[tuple[int, ...], Any]] = [
            ((*rows, lanes), jnp.float32),
            ((self.chunks, self.rows, lanes), jnp.int32),
        ]
        if not self.shape.known:
            arrays.append(((*rows, 2 * lanes), jnp.float32))
        return arrays

    @property
    def vmem(self) -> int:
        """Bytes of vector memory: blocks in flight, scratch, a step's temporaries."""
        fixed = sum(o.vmem for o in self.inputs() + self.outputs())
        fixed += sum(block_traffic.vmem_bytes(*array) for array in self.scratch())
        dim = layout.up(self.shape.dim, layout.LANES)
        scores = 5 * self.rows * self.block * 4
        return fixed + scores + 2 * self.block * dim * 4 + block_traffic.MIB // 2

    def ends(self, used: Any) -> Any:
        """Return int32[B * G / groups]: the blocks that hold a step's KV heads' tokens.

        Args:
            used: int32[B, G], slots up to the last with a token.
        """
        most = used.reshape(self.shape.batch, -1, self.groups).max(2)
        return (-(-most // self.block)).reshape(-1)

    def traffic(self, used: Any) -> dict[str, int]:
        """Count the bytes moved, by array, for `used` int32[B, G] slots."""
        operands = self.inputs() + self.outputs()
        return block_traffic.traffic(self.grid, operands, self.ends(np.asarray(used)))

    @functools.cached_property
    def cost(self) -> pl.CostEstimate:
        """The cost of a call when every slot is in use: how many are is not static."""
        s = self.shape
        scores = s.batch * s.groups * self.chunks * self.rows * s.size * self.sweeps
        full = np.full((s.batch, s.groups), s.size)
        return pl.CostEstimate(
            flops=2 * scores * s.dim,
            transcendentals=scores,
            bytes_accessed=sum(self.traffic(full).values()),
        )


def plan(shape: Shape, vmem: int) -> Plan:
    """Choose the tiling that moves most bytes a step within `vmem` bytes.

    Raises:
        ValueError: no tiling fits.
    """
    slot = layout.up(shape.dim, layout.LANES) * np.dtype(shape.key_dtype).itemsize
    longest = max(SMALL // (shape.groups * slot), shape.size // FEWEST, layout.LANES)
    rows = Plan(shape, 1, layout.LANES).rows
    largest = min(LARGEST, SCORES // rows, longest)
    sizes = [b for b in (1024, 512, 256, 128) if b <= largest]
    if shape.size <= layout.LANES:
        sizes = [shape.size]
    steps = [
        Plan(shape, groups, block)
        for groups in range(1, shape.groups + 1)
        for block in sizes
        if shape.groups % groups == 0 and (groups * block * slot <= STEP or groups == 1)
    ]
    steps.sort(key=lambda step: (step.groups * step.block, step.groups), reverse=True)
    for candidate in steps:
        if candidate.vmem <= vmem:
            return candidate
    raise ValueError(f"{shape} does not fit {vmem} bytes of vector memory")
