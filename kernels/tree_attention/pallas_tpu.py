"""Tree attention for TPUs: one pass over the blocks of the cache that a row needs.

The grid is (cores, KV-head groups, passes, steps). Each core has a list of steps: every
block that one of its rows needs, row by row. The list is as long as the rows are: a
short row takes no empty steps, and the next row's first block is fetched during its
last. A block wholly inside the committed prefix needs no mask. In the others a product
gives the bits of every slot: the nodes' mask bytes times a 0/1 matrix that selects the
byte of each slot. Of a paged cache the kernel copies the pages itself (`page_copies`).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels import int4_packing
from kernels.tree_attention import layout, page_copies, tiling, vectors
from kernels.tree_attention.tiling import Plan as Plan
from kernels.tree_attention.tiling import Shape as Shape
from kernels.tree_attention.tiling import plan as plan

LEAST = -1e30  # the running maximum of a row without a visible slot so far
UNSEEN = -2e30  # a masked score: exp2(UNSEEN - LEAST) is 0
LN_2 = math.log(2.0)
LOG2_E = 1 / LN_2


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
    bias: Array | None = None,
    vmem: int | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """Run the kernel by its plan; arguments as in `api.tree_attention`.

    With a `table` int32[B, S / page], k and v are pools of pages [P, G, page, d].
    """
    s, at = plan.shape, plan.at
    union, end = layout.reach(ancestors)
    bounds = layout.bounds(s.size, lengths, end, positions, key_positions, s.window)
    clear = layout.clear_from(lengths, positions, key_positions, s.window)
    bounds = jnp.concatenate([bounds, clear[None]])
    own = layout.spread(at, layout.mask_bytes(ancestors))
    some = layout.mask_bytes(union)[:, None, None]
    some = jnp.broadcast_to(some, (s.batch, at.tiles, layout.SUBLANES, layout.LANES))
    arrays = [layout.fold(at, q, s.groups), k, v, jnp.concatenate([own, some], 2)]
    if k_scale is not None and v_scale is not None:
        arrays += [k_scale[:, :, None], v_scale[:, :, None]]
    if positions is not None and key_positions is not None and s.window:
        arrays += [layout.spread(at, positions[..., None]), key_positions[:, None]]
    if bias is not None:
        arrays.append(bias[:, :, None])
    scalars = plan.scalars(bounds)
    scratch = [pltpu.VMEM(shape, jnp.float32) for shape in plan.scratch()]
    if table is not None:
        scalars += (page_copies.flatten(plan, table),)
        scratch += page_copies.scratch(plan)
    inputs, outputs = plan.inputs(), plan.outputs()
    call = pl.pallas_call(
        functools.partial(_kernel, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=plan.grid(scalars[3]),
            in_specs=[o.spec for o in inputs],
            out_specs=[o.spec for o in outputs],
            scratch_shapes=scratch,
        ),
        out_shape=[jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem,
            disable_bounds_checks=bool(s.page),  # 16 bundles a copy
        ),
        cost_estimate=plan.cost,
        interpret=interpret,
        metadata=s.written(),  # stays in the compiled program: `bundles.calls`
        name="tree_attention",
    )
    out, lse = call(*scalars, *arrays)
    return layout.unfold(at, out), layout.unfold(at, lse.swapaxes(-1, -2))[..., 0]


def _kernel(plan: Plan, *refs) -> None:
    inputs, num_scalars = plan.inputs(), 5 if plan.shape.page else 4
    scalars, refs = refs[:num_scalars], refs[num_scalars:]
    bounds, rows, blocks, counts = scalars[:4]
    named = dict(zip([o.name for o in inputs], refs))
    out, lse, acc, stats, *buffers = refs[len(inputs) :]
    c, g, p, t = (pl.program_id(i) for i in range(4))
    if plan.shape.page:
        pools = named["k"], named["v"]
        copies = page_copies.PageCopies(plan, scalars, pools, buffers, c, g)
        named["k"], named["v"] = copies.turn(t)
    b, block = rows[c * plan.most + t], blocks[c * plan.most + t]
    length, first, end, clear = (bounds[i, b] for i in range(4))
    earliest, last = plan.ends(first, end)
    start = block * plan.block
    has_step = t < counts[c]  # a core may have fewer steps than another
    if plan.lead:
        has_step &= t >= plan.lead

    @pl.when(has_step & (block == earliest))
    def _():
        acc[...] = jnp.zeros_like(acc)
        lane = lax.broadcasted_iota(jnp.int32, stats.shape, 2)
        stats[...] = jnp.where(_of_totals(plan, lane), 0.0, LEAST)

    whole = (start >= clear) & (start + plan.block <= length)

    fold = has_step & (start < end)

    @pl.when(fold & whole)
    def _():
        _block(plan, named, acc, stats, p, None)

    @pl.when(fold & jnp.logical_not(whole))
    def _():
        _block(plan, named, acc, stats, p, (start, length, first, end))

    @pl.when(has_step & (block == last))
    def _():
        def finish(i) -> None:
            g, c = _split(plan, i)
            top, total = _read(plan, stats, i)
            count = total.sum(1, keepdims=True)
            some = jnp.where(count == 0, 1.0, count)
            out[0, g, c] = (acc[i] / some).astype(out.dtype)
            # In every lane; a transposition makes a row of it.
            column = jnp.where(count == 0, -jnp.inf, LN_2 * top + jnp.log(some))
            lse[0, g, c] = column.T[:1]

        vectors.each(plan.groups * plan.chunks, finish)


def _block(plan: Plan, named, acc, stats, p, limits) -> None:
    """Fold one block of slots into every row; `limits` None: all slots are seen.

    Every node of a tile has one mask, for all heads.
    """
    tiles, chunks = plan.at.tiles, plan.chunks
    turns = tiles if chunks % tiles == 0 else chunks  # several passes cut the tiles
    heads = chunks // turns
    masks = None if limits is None else _Masks(named, plan.block, limits)
    used = None if masks is None else masks.used()
    # A lone fold is cut in two, so that one half's products hide the other's rest.
    rows = plan.at.rows
    is_cut = rows >= layout.LANES and rows % (2 * layout.SUBLANES) == 0
    parts = 2 if plan.groups * heads == 1 and is_cut else 1
    many = rows // parts

    def turn(t) -> None:
        seen = None
        if masks is not None:
            tile = t
            if turns != tiles:
                tile = lax.rem(p * chunks + t, np.int32(tiles))
            seen = masks.seen(tile, plan.at.width, plan.shape.window)

        def at(i) -> tuple[Any, Any, slice]:
            i, part = (0, i) if parts > 1 else (i, 0)
            g = tiling.divide(i, heads)
            rows = slice(part * many, (part + 1) * many)
            return g, (i - g * heads) * turns + t, rows

        def score(i) -> Array:
            return _score(plan, named, *at(i))

        def fold(i, scores) -> None:
            _fold(plan, named, acc, stats, *at(i), scores, seen, used)

        vectors.each(plan.groups * heads * parts, fold, score)

    vectors.each(turns, turn, unrolled=1)


def _score(plan: Plan, named, g, c, rows: slice) -> Array:
    """Return float32[rows, block]: the products of chunk `c` of KV head `g`."""
    compute, precise = _products(plan)
    return lax.dot_general(
        named["q"][0, g, c, rows].astype(compute),
        _stored(plan, named["k"], g, compute),
        (((1,), (1,)), ((), ())),
        precision=precise,
        preferred_element_type=jnp.float32,
    )


def _products(plan: Plan) -> tuple[Any, Any]:
    """Return the dtype and the precision of the products."""
    compute = jnp.promote_types(plan.shape.dtype, jnp.bfloat16)
    return compute, lax.Precision.HIGHEST if compute == jnp.float32 else None


def _fold(plan: Plan, named, acc, stats, g, c, rows: slice, scores, seen, used) -> None:
    """Fold the block of KV head `g` into `rows` of its chunk `c`."""
    s, at, block = plan.shape, plan.at, plan.block
    i = g * plan.chunks + c
    compute, precise = _products(plan)
    v = _stored(plan, named["v"], g, compute)
    if s.scaled:
        scores = scores * named["k_scale"][0, g]
        v_scale = named["v_scale"][0, g]
    # Of base 2: the unit for exponentials has that base.
    if s.softcap:
        scores = jnp.tanh(scores * (s.scale / s.softcap)) * (s.softcap * LOG2_E)
    else:
        scores = scores * (s.scale * LOG2_E)
    if s.biased:
        scores = scores + named["bias"][0, g] * LOG2_E
    if seen is not None:
        if at.copies > 1:
            shape = (at.copies, at.width, block)
            seen = jnp.broadcast_to(seen[None], shape).reshape(at.rows, block)
        scores = jnp.where(seen[rows] != 0, scores, UNSEEN)
        # A weight of 0 is not enough: an unused slot may hold NaN, and NaN * 0 is NaN.
        column, row = used
        v = jnp.where(vectors.across(column, s.dim) != 0, v, jnp.zeros_like(v))
        if s.scaled:
            v_scale = jnp.where(row != 0, v_scale, 0.0)
    before, total = _read(plan, stats, i, rows)
    top = jnp.maximum(before, scores.max(1, keepdims=True))
    weights = jnp.exp2(scores - vectors.across(top, block))
    shrink = jnp.exp2(before - top)
    total = total * shrink + vectors.lane_sums(weights)
    if not plan.replicated:
        total = total.sum(1, keepdims=True)
        lane = lax.broadcasted_iota(jnp.int32, top.shape, 1)
        stats[i, rows] = jnp.where(_of_totals(plan, lane), total, top)
    else:
        stats[i, rows] = jnp.concatenate([top, total], 1)
    if s.scaled:
        weights = weights * v_scale
    acc[i, rows] = acc[i, rows] * vectors.across(shrink, s.dim) + lax.dot_general(
        weights.astype(compute),
        v,
        (((1,), (0,)), ((), ())),
        precision=precise,
        preferred_element_type=jnp.float32,
    )


def _read(plan: Plan, stats, i, rows=slice(None)) -> tuple[Array, Array]:
    """Return the maximum of each row, in every lane, and its total, in parts."""
    x, lanes = stats[i, rows], layout.LANES
    if plan.replicated:
        return x[:, :lanes], x[:, lanes:]
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return (
        jnp.broadcast_to(x[:, :1], x.shape),
        jnp.where(_of_totals(plan, lane), x, 0.0),
    )


def _of_totals(plan: Plan, lane: Array) -> Array:
    """Return where the scratch of maxima and totals has a part of a total."""
    return lane >= layout.LANES if plan.replicated else lane == 1


def _split(plan: Plan, i: Any) -> tuple[Any, Any]:
    """Return the KV head and the chunk of row block `i` of the scratch."""
    g = tiling.divide(i, plan.chunks)
    return g, i - g * plan.chunks


def _stored(plan: Plan, ref, g, dtype: Any) -> Array:
    """Return [block, d] of KV head `g` of keys or values [pieces, heads, piece, d]."""
    return _wide(ref[:, g].reshape(-1, plan.shape.dim), dtype)


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
        # The byte of each slot, as a 0/1 matrix [slots, bytes].
        byte = lax.broadcasted_iota(jnp.int32, (block, layout.LANES), 1)
        which = byte == ((self._slot(byte.shape, 0) - self.length) >> 3)
        self.select = jnp.where(which, 1.0, 0.0).astype(jnp.bfloat16)

    def seen(self, tile, width: int, window: int) -> Array:
        """Return int32[width, block]: 1 where a node of the tile sees the slot."""
        value = _product(self.named["bytes"][0, tile, :width], self.select)
        slot = self._slot(value.shape, 1)
        seen = self._bits(value, slot)
        if window:
            distance = self.named["positions"][0, tile] - self.named["key_positions"][0]
            seen = jnp.where(distance < window, seen, 0)
        return seen

    def used(self) -> tuple[Array, Array]:
        """Return int32[block, 128] and [1, block]: 1 for slots that some node may see.

        The first is the same in every lane.
        """
        union = self.named["bytes"][0, 0, -layout.SUBLANES :]
        row = _product(union, self.select)[:1]
        alike = jnp.concatenate([union] * (layout.LANES // layout.SUBLANES), 0)
        column = _product(self.select, alike)
        column = self._bits(column, self._slot(column.shape, 0))
        return column, self._bits(row, self._slot(row.shape, 1))

    def _slot(self, shape: tuple[int, ...], axis: int) -> Array:
        return self.start + lax.broadcasted_iota(jnp.int32, shape, axis)

    def _bits(self, value: Array, slot: Array) -> Array:
        """Return int32: 1 in the prefix; the bit of `value` for slots of the block."""
        offset = slot - self.length
        bits = lax.shift_right_logical(value.astype(jnp.int32), offset & 7) & 1
        bits = jnp.where((slot >= self.first) & (offset < 0), 1, bits)
        return jnp.where(slot < self.end, bits, 0)


def _product(x: Array, y: Array) -> Array:
    """Return float32 x @ y.T of bfloat16."""
    return lax.dot_general(
        x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
