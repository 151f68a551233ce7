"""Tree attention for TPUs: one pass over the blocks of the cache that a row needs.

The grid is (rows of the batch, KV-head groups, passes, blocks of slots). The index maps
read each row's bounds from prefetched scalars and stay at its last block afterwards, so
that nothing past it is fetched. A block wholly inside the committed prefix needs no
mask. In the others a product gives the bits of every slot: the nodes' mask bytes times
a 0/1 matrix that selects the byte of each slot.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels import int4_packing
from kernels.tree_attention import layout
from kernels.tree_attention.tiling import Plan as Plan
from kernels.tree_attention.tiling import Shape as Shape
from kernels.tree_attention.tiling import plan as plan

LEAST = -1e30  # the running maximum of a row without a visible slot so far
UNSEEN = -2e30  # a masked score: exp(UNSEEN - LEAST) is 0


def tree_attention(
    plan: Plan,
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    positions: Array | None = None,
    key_positions: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    table: Array | None = None,
    vmem: int | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """Run the kernel by its plan; arguments as in `api.tree_attention`.

    With a `table` int32[B, S / page], k and v are pools of pages [P, G, page, d].
    """
    s, at = plan.shape, plan.at
    union, end = layout.reach(ancestors)
    bounds = layout.bounds(s.size, lengths, end, positions, key_positions, s.window)
    if table is not None:
        bounds = jnp.concatenate([bounds, jnp.clip(table.T, 0, s.pages - 1)])
    some = layout.mask_bytes(union)[:, None]
    arrays = [
        layout.fold(at, q, s.groups),
        k,
        v,
        layout.spread(at, layout.mask_bytes(ancestors)),
        jnp.broadcast_to(some, (s.batch, layout.SUBLANES, layout.LANES)),
    ]
    if k_scale is not None and v_scale is not None:
        arrays += [k_scale[:, :, None], v_scale[:, :, None]]
    if positions is not None and key_positions is not None and s.window:
        arrays += [layout.spread(at, positions[..., None]), key_positions[:, None]]
    inputs, outputs = plan.inputs(), plan.outputs()
    call = pl.pallas_call(
        functools.partial(_kernel, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=plan.grid,
            in_specs=[o.spec for o in inputs],
            out_specs=[o.spec for o in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in plan.scratch()],
        ),
        out_shape=[jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem,
        ),
        cost_estimate=plan.cost,
        interpret=interpret,
        name="tree_attention",
    )
    out, lse = call(bounds, *arrays)
    return layout.unfold(at, out), layout.unfold(at, lse.swapaxes(-1, -2))[..., 0]


def _kernel(plan: Plan, bounds, *refs) -> None:
    s, at, block = plan.shape, plan.at, plan.block
    named = dict(zip([o.name for o in plan.inputs()], refs))
    out, lse, acc, stats = refs[-4:]
    b, p, j = pl.program_id(0), pl.program_id(2), pl.program_id(3)
    length, first, end = bounds[0, b], bounds[1, b], bounds[2, b]
    start = (lax.div(first, np.int32(block)) + j) * block

    @pl.when(j == 0)
    def _():
        acc[...] = jnp.zeros_like(acc)
        lane = lax.broadcasted_iota(jnp.int32, stats.shape, 2)
        stats[...] = jnp.where(lane == 0, LEAST, 0.0)

    within = (start >= first) & (start + block <= length) & (not s.window)

    @pl.when((start < end) & within)
    def _():
        _block(plan, named, acc, stats, p, None)

    @pl.when((start < end) & jnp.logical_not(within))
    def _():
        _block(plan, named, acc, stats, p, (start, length, first, end))

    @pl.when(j == pl.num_programs(3) - 1)
    def _():
        def finish(i, _):
            g, c = _split(plan, i)
            top, total = stats[i, :, :1], stats[i, :, 1:2]
            some = jnp.where(total == 0, 1.0, total)
            out[0, g, c] = (acc[i] / some).astype(out.dtype)
            column = jnp.where(total == 0, -jnp.inf, top + jnp.log(some))
            # Column to row: sums over a diagonal matrix, exact because the rest is 0.
            square = (at.rows, at.rows)
            down = lax.broadcasted_iota(jnp.int32, square, 0)
            right = lax.broadcasted_iota(jnp.int32, square, 1)
            diagonal = jnp.where(down == right, column, 0.0)
            lse[0, g, c] = diagonal.sum(0, keepdims=True)
            return 0

        lax.fori_loop(0, plan.groups * plan.chunks, finish, 0)


def _block(plan, named, acc, stats, p, limits) -> None:
    """Fold one block of slots into every row; `limits` None: all slots are seen."""
    s, at, block = plan.shape, plan.at, plan.block
    compute = jnp.promote_types(s.dtype, jnp.bfloat16)
    precise = lax.Precision.HIGHEST if compute == jnp.float32 else None
    if limits is not None:
        masks = _Masks(named, block, limits)
        keep_column, keep_row = masks.used()

    def fold(i, _):
        g, c = _split(plan, i)
        k = _wide(named["k"][0, g], compute)
        v = _wide(named["v"][0, g], compute)
        scores = lax.dot_general(
            named["q"][0, g, c].astype(compute),
            k,
            (((1,), (1,)), ((), ())),
            precision=precise,
            preferred_element_type=jnp.float32,
        )
        if s.scaled:
            scores = scores * named["k_scale"][0, g]
            v_scale = named["v_scale"][0, g]
        if s.scale != 1.0:
            scores = scores * s.scale
        if s.softcap:
            scores = jnp.tanh(scores / s.softcap) * s.softcap
        if limits is not None:
            tile = lax.rem(p * plan.chunks + c, np.int32(at.tiles))
            seen = masks.seen(tile, s.window)
            if at.copies > 1:
                shape = (at.copies, at.width, block)
                seen = jnp.broadcast_to(seen[None], shape).reshape(at.rows, block)
            scores = jnp.where(seen != 0, scores, UNSEEN)
            # A weight of 0 is not enough: an unused slot may hold NaN, and NaN * 0 is
            # NaN.
            v = jnp.where(keep_column != 0, v, jnp.zeros_like(v))
            if s.scaled:
                v_scale = jnp.where(keep_row != 0, v_scale, 0.0)
        before, total = stats[i, :, :1], stats[i, :, 1:2]
        top = jnp.maximum(before, scores.max(1, keepdims=True))
        weights = jnp.exp(scores - top)
        shrink = jnp.exp(before - top)
        total = total * shrink + weights.sum(1, keepdims=True)
        lane = lax.broadcasted_iota(jnp.int32, stats.shape[1:], 1)
        stats[i] = jnp.where(lane == 0, top, total)
        if s.scaled:
            weights = weights * v_scale
        acc[i] = acc[i] * shrink + lax.dot_general(
            weights.astype(compute),
            v,
            (((1,), (0,)), ((), ())),
            precision=precise,
            preferred_element_type=jnp.float32,
        )
        return 0

    lax.fori_loop(0, plan.groups * plan.chunks, fold, 0)


def _split(plan: Plan, i: Array) -> tuple[Array, Array]:
    """Return the KV head and the chunk of row block `i` of the scratch."""
    chunks = np.int32(plan.chunks)
    return lax.div(i, chunks), lax.rem(i, chunks)


def _wide(x: Array, dtype: Any) -> Array:
    """Cast a stored block to the dtype of the products (8 bits by way of float32)."""
    if int4_packing.packed(x.dtype):
        x = int4_packing.unpack(x)
        return x.astype(jnp.float32).astype(dtype)
    if x.dtype.itemsize == 1:
        x = x.astype(jnp.float32)
    return x.astype(dtype)


class _Masks:
    """The masks of a block that is not wholly inside the prefix."""

    def __init__(self, named, block: int, limits):
        self.named, self.block = named, block
        self.start, self.length, self.first, self.end = limits
        lanes = layout.LANES
        self.slot = self.start + lax.broadcasted_iota(jnp.int32, (1, block), 1)
        offset = self.slot - self.length
        self.shift = offset & 7
        byte = lax.broadcasted_iota(jnp.int32, (lanes, block), 0)
        which = byte == (offset >> 3)
        self.spread = jnp.where(which, 1.0, 0.0).astype(jnp.bfloat16)

    def seen(self, tile, window: int) -> Array:
        """Return int32[width, block]: 1 where a node of the tile sees the slot."""
        bits = self._bits(self.named["bytes"][0, tile], self.spread)
        seen = jnp.where(self._in_prefix(self.slot), 1, bits)
        if window:
            distance = self.named["positions"][0, tile] - self.named["key_positions"][0]
            seen = jnp.where(distance < window, seen, 0)
        return jnp.where(self.slot < self.end, seen, 0)

    def used(self) -> tuple[Array, Array]:
        """Return int32[block, 1] and [1, block]: 1 for slots that some node may see."""
        union = self.named["union"][0]
        row = self._bits(union, self.spread)[:1]
        row = jnp.where(self._in_prefix(self.slot), 1, row)
        row = jnp.where(self.slot < self.end, row, 0)
        shape = (self.block, layout.LANES)
        slot = self.start + lax.broadcasted_iota(jnp.int32, (self.block, 1), 0)
        offset = slot - self.length
        byte = lax.broadcasted_iota(jnp.int32, shape, 1)
        selected = jnp.where(byte == (offset >> 3), union[:1].astype(jnp.float32), 0.0)
        value = selected.sum(1, keepdims=True).astype(jnp.int32)
        column = lax.shift_right_logical(value, offset & 7) & 1
        column = jnp.where(self._in_prefix(slot), 1, column)
        return jnp.where(slot < self.end, column, 0), row

    def _in_prefix(self, slot: Array) -> Array:
        return (slot >= self.first) & (slot < self.length)

    def _bits(self, nodes: Array, spread: Array) -> Array:
        value = jnp.dot(nodes, spread, preferred_element_type=jnp.float32)
        shift = jnp.broadcast_to(self.shift, value.shape)
        return lax.shift_right_logical(value.astype(jnp.int32), shift) & 1
