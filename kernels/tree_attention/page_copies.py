"""A step's keys and values, copied from a pool of pages one step ahead.

A block of slots lies in several pages, or in a part of one. A *piece* is what a page
and a block share: gcd(page, block) slots of the step's KV heads. The pieces up to a
row's end are copied from the pool into one half of a buffer in vector memory, while the
other half is read:

    step t    starts t + 1 into half (t + 1) % 2    waits for t    reads half t % 2

Step t + 1 may be of the next row. Step 0 has no block of its own (`Plan.lead`).
Semaphore t % 2 counts the bytes that arrive in half t % 2.

`jax.experimental.pallas.ops.tpu.ragged_paged_attention` has such a buffer, too.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.tree_attention.tiling import Plan, divide

UNROLLED = 8  # pieces side by side: one's address is computed during another's load


def flatten(plan: Plan, table: Array) -> Array:
    """Return `table` int32[B, S / page] in one dimension, which is not padded to tiles.

    A last block may read entries past its row's. There are enough behind the last row.
    """
    flat = jnp.clip(table, 0, plan.shape.pages - 1).reshape(-1)
    return jnp.pad(flat, (0, plan.pieces))


def scratch(plan: Plan) -> list[Any]:
    """Return both halves of the keys and of the values, and the halves' semaphores."""
    halves = [pltpu.VMEM((2, *o.block), o.dtype) for o in plan.copied()]
    return [*halves, pltpu.SemaphoreType.DMA((2,))]


@dataclasses.dataclass(frozen=True)
class PageCopies:
    """The copies of one core, for one group of KV heads."""

    plan: Plan
    scalars: Any  # refs: `Plan.scalars`, and behind them the table of `flatten`
    pools: Any  # refs of keys and of values [P, G, page, d]
    scratch: Any  # refs of `scratch`
    core: Any
    group: Any

    def turn(self, t: Any) -> list[Any]:
        """Start step t + 1 and wait for step t; return the keys and the values of t.

        They are refs [pieces, KV heads, piece, d]. A piece that the row does not need
        has the content of an earlier step.
        """
        count = self.scalars[3][self.core]

        @pl.when(t + 1 < count)
        def _():
            self.start(t + 1)

        @pl.when((t >= self.plan.lead) & (t < count))
        def _():
            self.wait(t)

        return [half.at[t & 1] for half in self.scratch[:-1]]

    def start(self, t: Any) -> None:
        """Start the copies of step t."""
        plan, page = self.plan, self.plan.shape.page
        row, begin, needed = self._step(t)
        first = row * (plan.shape.size // page) + divide(begin, page)
        heads = pl.ds(self.group * plan.groups, plan.groups)

        def copy(i: Any, carry: None) -> None:
            column, slots = first + i, pl.ds(0, page)
            if plan.piece < page:
                slot = begin + i * plan.piece
                column = first + divide(slot, page) - divide(begin, page)
                slots = pl.ds(slot - divide(slot, page) * page, plan.piece)
            index = self.scalars[4][column]  # in any case: a branch costs more

            @pl.when(i < needed)
            def _():
                for pool, half in zip(self.pools, self.scratch[:-1], strict=True):
                    source, target = pool.at[index, heads, slots], half.at[t & 1, i]
                    arrived = self.scratch[-1].at[t & 1]
                    pltpu.make_async_copy(source, target, arrived).start()

        lax.fori_loop(0, plan.pieces, copy, None, unroll=min(UNROLLED, plan.pieces))

    def wait(self, t: Any) -> None:
        """Wait for the copies of step t.

        A wait is for a number of bytes that the program fixes: one wait for each bit of
        the number of pieces.
        """
        _, _, needed = self._step(t)
        for bit in range(self.plan.pieces.bit_length()):

            @pl.when((needed >> jnp.int32(bit)) & 1 == 1)
            def _(many=1 << bit):
                for half in self.scratch[:-1]:
                    part = half.at[t & 1, pl.ds(0, many)]
                    arrived = self.scratch[-1].at[t & 1]
                    pltpu.make_async_copy(part, part, arrived).wait()

    def _step(self, t: Any) -> tuple[Any, Any, Any]:
        """Return the row of step t, its first slot, and the pieces that it needs."""
        bounds, rows, blocks = self.scalars[:3]
        at = self.core * self.plan.most + t
        row, begin = rows[at], blocks[at] * self.plan.block
        return row, begin, self.plan.needed(begin, bounds[2, row])
