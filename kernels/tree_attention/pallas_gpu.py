"""Tree attention for Hopper GPUs, in Mosaic GPU.

A program computes 64 rows of one batch row and KV head for each of its `warpgroups`:
nodes times the query heads of the KV head. It reads one of `splits` runs of the row's
blocks of slots, so that a small batch still fills the machine; the runs are merged by
log-sum-exp afterwards. The tensor memory accelerator fetches keys and values `STAGES`
blocks ahead, by the page table if the cache is paged; the warpgroups share them. The
first one fetches again when all have read. Blocks wholly inside the prefix need no
mask. In the others each row's ancestor words are shifted to the slots in registers.

The bound: a slot's keys and values are 4 d bytes, and `R` rows do 4 R d operations with
them: R a byte. An H100 does 295 operations in the time of a byte, an H200 206: 64
nodes of four heads are 256 rows, near the point where products take over.

q and the cache must both be bfloat16 or both float16. `d`, and the number of slots of
the cache and of a page, must be multiples of 64. `reason_against` checks all
conditions.
"""

import functools
import inspect
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu

from kernels import merge_softmax
from kernels.tree_attention import layout
from kernels.tree_attention.pallas_tpu import LEAST, UNSEEN, Shape

ROWS = 64  # of a matrix instruction
BLOCK = 64  # slots
STAGES = 2
MOST = 4  # warpgroups of a program
PROCESSORS = 132  # multiprocessors of an H100 and an H200
FEWEST = 0.9 * PROCESSORS  # programs, before warpgroups are given up for more
LOG2E = 1.4426950408889634

plgpu: Any = mosaic_gpu  # typed differently in each of the versions in setup.py
_load = plgpu.load
if "idx" in inspect.signature(plgpu.load).parameters:  # before jax 0.12
    _load = functools.partial(plgpu.load, idx=())


def reason_against(shape: Shape) -> str:
    """Return why a call cannot use this form; "" if it can."""
    if shape.dtype not in (jnp.bfloat16, jnp.float16):
        return f"q is {shape.dtype}: tensor cores round it"
    if shape.cache_dtype != shape.dtype:
        return f"the cache is {shape.cache_dtype}, q {shape.dtype}"
    if shape.dim % 64 or shape.dim > 256:
        return f"d={shape.dim}: a multiple of 64 up to 256 is needed"
    if shape.size % BLOCK:
        return f"S={shape.size} is no multiple of {BLOCK}"
    if shape.page % BLOCK:
        return f"pages of {shape.page} slots: a multiple of {BLOCK} is needed"
    if shape.biased:
        return "a bias of slots"
    return ""


def warpgroups(shape: Shape) -> int:
    """Return the warpgroups of a program, 64 rows each, that share keys and values.

    As many as the rows need, but half of them where the programs would leave
    multiprocessors without work: short caches of few rows.
    """
    wide = MOST if shape.dim <= 128 else MOST // 2  # fast memory and registers
    wide = min(wide, -(-shape.nodes * shape.heads // ROWS))
    while wide > 1 and _programs(shape, wide) * _longest(shape) < FEWEST:
        wide //= 2
    return wide


def splits(shape: Shape) -> int:
    """Return the number of runs: enough programs, each of at least 8 blocks.

    A multiprocessor takes two programs of one warpgroup, one of several.
    """
    wide = warpgroups(shape)
    target = PROCESSORS * (2 if wide == 1 else 1)
    return max(1, min(target // _programs(shape, wide), _longest(shape)))


def tiles(shape: Shape, wide: int) -> int:
    """Return the programs of `wide` warpgroups that the rows of a KV head need."""
    return -(-shape.nodes * shape.heads // (ROWS * wide))


def _programs(shape: Shape, wide: int) -> int:
    return shape.batch * shape.groups * tiles(shape, wide)


def _longest(shape: Shape) -> int:
    return max(1, shape.size // (8 * BLOCK))


def tree_attention(
    shape: Shape,
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    positions: Array | None = None,
    key_positions: Array | None = None,
    *,
    table: Array | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """Run the kernel; arguments as in `api.tree_attention`.

    With a `table` int32[B, S / page], k and v are pools of pages [P, G, page, d].
    """
    s, runs = shape, splits(shape)
    count, wide = s.nodes * s.heads, warpgroups(shape)
    cut = tiles(shape, wide)
    padded = cut * wide * ROWS
    union, end = layout.reach(ancestors)
    bounds = layout.bounds(s.size, lengths, end, positions, key_positions, s.window)

    def rows(x: Array) -> Array:
        """Reshape entries per node, `[B, N, w]`, to int32[B, rows / 64, w, 64]."""
        x = jnp.repeat(x, s.heads, 1)
        x = jnp.pad(x, ((0, 0), (0, padded - count), (0, 0)))
        x = einops.rearrange(x, "b (t rows) w -> b t w rows", rows=ROWS)
        return lax.bitcast_convert_type(x, jnp.int32)

    queries = einops.rearrange(q, "b n (g r) d -> b g (n r) d", g=s.groups)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, padded - count), (0, 0)))
    arrays = [queries, k, v, bounds, rows(ancestors)]
    arrays.append(lax.bitcast_convert_type(union, jnp.int32))
    if s.window:
        assert positions is not None and key_positions is not None
        arrays += [rows(positions[..., None]), key_positions]
    if table is not None:
        arrays.append(jnp.clip(table, 0, s.pages - 1))
    new = jax.ShapeDtypeStruct
    lead = (runs, s.batch, s.groups, padded)
    # Tiles of 8 rows of 128 bytes, as the matrix instructions read them.
    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    memory = functools.partial(plgpu.SMEM, dtype=q.dtype, transforms=tiled)
    # Approximate tanh has 11 bits, and a soft cap multiplies its error.
    exact = bool(s.softcap)
    call = plgpu.kernel(
        functools.partial(_kernel, s, runs, bool(interpret)),
        out_type=[new((*lead, s.dim), q.dtype), new(lead, jnp.float32)],
        grid=(cut, s.groups, s.batch * runs),
        grid_names=("tile", "group", "run"),
        num_threads=wide,
        thread_name="warpgroup",
        scratch_types=[
            memory((wide, ROWS, s.dim)),
            memory((STAGES, BLOCK, s.dim)),
            memory((STAGES, BLOCK, s.dim)),
            plgpu.SMEM((wide, ROWS), jnp.float32),
            plgpu.Barrier(num_barriers=wide),
            plgpu.Barrier(num_barriers=STAGES),
            plgpu.Barrier(num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=wide, num_barriers=STAGES),
        ],
        compiler_params=plgpu.CompilerParams(approx_math=not exact),
        **({"interpret": interpret} if interpret else {}),
    )
    out, total = merge_softmax.merge_stacked(*call(*arrays))
    joined = jnp.concatenate([out.astype(jnp.float32), total[..., None]], -1)
    joined = einops.rearrange(
        joined[:, :, :count], "b g (n r) d -> b n (g r) d", n=s.nodes
    )
    return joined[..., : s.dim].astype(q.dtype), joined[..., s.dim]


def _kernel(
    s: Shape, runs: int, interpret: bool, q, k, v, bounds, words, *refs
) -> None:
    union, *more = refs[:-10]
    near: Any = more[:2] if s.window else ()
    table = more[-1] if s.page else None
    out, lse, q_all, k_at, v_at, lse_all, q_here, k_here, v_here, read = refs[-10:]
    one, block = np.int32(1), np.int32(BLOCK)
    tile, g, both = (lax.axis_index(name) for name in ("tile", "group", "run"))
    mine = lax.axis_index("warpgroup")
    tile = tile * np.int32(q_all.shape[0]) + mine
    q_at, lse_at = q_all.at[mine], lse_all.at[mine]
    b, run = lax.div(both, np.int32(runs)), lax.rem(both, np.int32(runs))
    length, first, end = bounds[0, b], bounds[1, b], bounds[2, b]
    low = lax.div(first, block)
    blocks = lax.div(end + block - one, block) - low
    each = lax.div(jnp.maximum(blocks, 0) + np.int32(runs - 1), np.int32(runs))
    begin = low + run * each
    steps = jnp.maximum(jnp.minimum(each, low + blocks - begin), 0)
    rows = pl.ds(tile * ROWS, ROWS)
    square, row = plgpu.Layout.WGMMA, plgpu.Layout.WGMMA.reduce(1)

    def fetch(i: Any) -> None:
        stage, slot, at = lax.rem(i, np.int32(STAGES)), (begin + i) * BLOCK, b
        if table is not None:
            page = np.int32(s.page)
            at, slot = table[b, lax.div(slot, page)], lax.rem(slot, page)
        slots = pl.ds(slot, BLOCK)
        plgpu.copy_gmem_to_smem(k.at[at, g, slots], k_at.at[stage], k_here.at[stage])
        plgpu.copy_gmem_to_smem(v.at[at, g, slots], v_at.at[stage], v_here.at[stage])

    # The interpreter has no register layouts.
    def load(ref: Any, index: tuple, to: Any) -> Array:
        if interpret:
            return ref[index]
        return _load(ref.at[index], layout=to, optimized=False)

    def iota(shape: tuple, axis: int) -> Array:
        if interpret:
            return lax.broadcasted_iota(jnp.int32, shape, axis)
        return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=square)

    def full(shape: tuple, value: float, to: Any) -> Array:
        filled = jnp.full(shape, value, jnp.float32)
        return filled if interpret else plgpu.layout_cast(filled, to)

    def product(stage: Any) -> Array:
        if interpret:  # nor transposed operands
            a, b = q_all[mine].astype(jnp.float32), k_at[stage].astype(jnp.float32)
            return lax.dot_general(a, b, (((1,), (1,)), ((), ())))

        def into(acc: Any) -> Array:
            plgpu.wgmma(acc, q_at, k_at.at[stage].transpose((1, 0)))
            return acc[...]

        return pl.run_scoped(into, plgpu.ACC((ROWS, BLOCK), jnp.float32))

    def bits(word: Any, start: Array, offset: Array) -> Array:
        """Return the bit, int32, at each offset; all are within a block of `start`."""
        result = jnp.zeros_like(offset)
        lowest = lax.shift_right_arithmetic(start, np.int32(5))
        for i in range(BLOCK // 32 + 1):
            at = lowest + np.int32(i)
            value = word(jnp.clip(at, 0, words.shape[2] - 1))
            bit = lax.shift_right_logical(value, offset & np.int32(31)) & one
            fits = lax.shift_right_arithmetic(offset, np.int32(5)) == at
            fits &= (at >= 0) & (at < words.shape[2])
            result = jnp.where(fits, bit, result)
        return result

    def masked(scores: Array, start: Array) -> Array:
        shape = scores.shape
        column = iota(shape, 1)
        slot = start + column
        offset = slot - length

        def word(at: Array) -> Array:
            values = load(words, (b, tile, at), row)
            return lax.broadcast_in_dim(values, shape, [0])

        seen = bits(word, start - length, offset)
        seen = jnp.where((offset < 0) & (slot >= first), one, seen)
        if s.window:
            here = load(near[0], (b, tile, 0), row)
            there = load(near[1], (b, pl.ds(start, BLOCK)), square.reduce(0))
            distance = lax.broadcast_in_dim(here, shape, [0]) - lax.broadcast_in_dim(
                there, shape, [1]
            )
            seen = jnp.where(distance < s.window, seen, 0)
        return jnp.where((seen != 0) & (slot < end), scores, UNSEEN)

    def clean(stage: Any, start: Array) -> None:
        """Zero the values that no node sees: 0 times NaN is NaN."""
        values = load(v_at, (stage,), square)
        slot = start + iota(values.shape, 0)
        offset = slot - length
        used = bits(lambda at: union[b, at], start - length, offset)
        used = jnp.where((offset < 0) & (slot >= first), one, used)
        used = (used != 0) & (slot < end)
        v_at[stage] = jnp.where(used, values, jnp.zeros_like(values))
        plgpu.commit_smem()

    def weighed(acc: Array, weights: Array, stage: Any) -> Array:
        """Add the weighted values of a block to the sums."""
        if interpret:  # nor operands in registers
            return acc + jnp.dot(
                weights.astype(jnp.float32), v_at[stage].astype(jnp.float32)
            )

        def sums(into: Any) -> None:
            plgpu.wgmma(into, weights, v_at.at[stage])

        return pl.run_state(sums)(plgpu.ACC.init(acc))

    def step(i: Array, carry: tuple) -> tuple:
        acc, top, total = carry
        stage = lax.rem(i, np.int32(STAGES))
        start = (begin + i) * BLOCK
        whole = (start >= first) & (start + BLOCK <= length) & (not s.window)
        plgpu.barrier_wait(k_here.at[stage])

        # Of base 2, and masked after the factor: a mask is no number to be scaled.
        scores = product(stage)
        if s.softcap:
            scores = jnp.tanh(scores * (s.scale / s.softcap)) * (s.softcap * LOG2E)
        else:
            scores = scores * (s.scale * LOG2E)
        scores = lax.cond(whole, lambda x: x, lambda x: masked(x, start), scores)
        high = jnp.maximum(top, scores.max(axis=1))
        weights = jnp.exp2(scores - lax.broadcast_in_dim(high, scores.shape, [0]))
        shrink = jnp.exp2(top - high)
        total = total * shrink + weights.sum(axis=1)
        acc = acc * lax.broadcast_in_dim(shrink, acc.shape, [0])
        plgpu.barrier_wait(v_here.at[stage])

        # Warpgroups that share the values write the same zeros.
        @pl.when(jnp.logical_not(whole))
        def _():
            clean(stage, start)

        acc = weighed(acc, weights.astype(s.dtype), stage)

        @pl.when(i + STAGES < steps)
        def _():
            plgpu.barrier_arrive(read.at[stage])

            @pl.when(mine == 0)
            def _():
                plgpu.barrier_wait(read.at[stage])
                fetch(i + STAGES)

        return acc, high, total

    plgpu.copy_gmem_to_smem(q.at[b, g, rows], q_at, q_here.at[mine])
    for i in range(STAGES):
        pl.when((mine == 0) & (i < steps))(functools.partial(fetch, np.int32(i)))
    plgpu.barrier_wait(q_here.at[mine])

    begun = (
        full((ROWS, s.dim), 0.0, square),
        full((ROWS,), LEAST, row),
        full((ROWS,), 0.0, row),
    )
    acc, top, total = lax.fori_loop(0, steps, step, begun)
    some = jnp.where(total == 0, 1.0, total)
    q_at[...] = (acc / lax.broadcast_in_dim(some, acc.shape, [0])).astype(s.dtype)
    lse_at[...] = jnp.where(total == 0, -jnp.inf, top * (1 / LOG2E) + jnp.log(some))
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(q_at, out.at[run, b, g, rows])
    plgpu.copy_smem_to_gmem(lse_at, lse.at[run, b, g, rows])
    plgpu.wait_smem_to_gmem(0)
