"""Column sums for TPUs: one sweep over the keys, or two where `lse` is not known.

The grid is (batch, KV-head groups, sweeps, blocks of slots). A step has the scores of
all queries and one block: queries along sublanes, slots along lanes. So a column's sum
adds registers, and lies as the output does. Of base 2, a weight is

    weight * exp(score - lse) = 2 ** (log2(e) * score - less)
    less = log2(e) * lse - log2(weight)

and a query needs two numbers, `less` and its position. Both lie in lanes in HBM. The
first step of a row spreads them over lanes, once. A first sweep computes `less`: the
maximum and the total run as in tree attention, from a head's sink on where there is
one. Blocks without a token are not read.
"""

import functools
import math
from typing import Any

import einops
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.attention_columns.tiling import Plan as Plan
from kernels.attention_columns.tiling import Shape as Shape
from kernels.attention_columns.tiling import plan as plan
from kernels.tree_attention import layout, tiling, vectors

LEAST = -1e30  # the running maximum of a query without a visible slot so far
UNSEEN = -2e30  # a masked score: exp2(UNSEEN - LEAST) is 0
LOG2_E = 1 / math.log(2.0)
NEVER = 2**31 - 1  # a slot without a token, as if it were of the last position


def columns(
    plan: Plan,
    q: Array,
    k: Array,
    weight: Array,
    query_positions: Array,
    key_positions: Array,
    lse: Array | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    *,
    vmem: int | None = None,
    interpret: Any = False,
) -> Array:
    """Run the kernel by its plan; arguments as in `api.columns`."""
    s, count = plan.shape, plan.chunks * plan.rows
    fill = count - s.queries * s.heads

    def per_row(x: Array, padding: Any) -> Array:
        """Cut [..., M * R] into [..., chunks, 1, rows]."""
        widths = [(0, 0)] * (x.ndim - 1) + [(0, fill)]
        x = jnp.pad(x, widths, constant_values=padding)
        return x.reshape(*x.shape[:-1], plan.chunks, 1, plan.rows)

    rows = einops.rearrange(q, "b m (g r) d -> b g (m r) d", g=s.groups)
    rows = jnp.pad(rows, [(0, 0), (0, 0), (0, fill), (0, 0)])
    rows = rows.reshape(s.batch, s.groups, plan.chunks, plan.rows, s.dim)
    some = weight > 0
    less = jnp.where(some, -jnp.log2(jnp.where(some, weight, 1.0)), -LEAST)
    less = jnp.repeat(less.astype(jnp.float32), s.heads, 1)[:, None]
    less = jnp.broadcast_to(less, (s.batch, s.groups, less.shape[2]))
    if lse is not None:
        known = einops.rearrange(lse, "b m (g r) -> b g (m r)", g=s.groups)
        less = less + jnp.maximum(known * LOG2_E, LEAST)
    limit = jnp.repeat(query_positions.astype(jnp.int32), s.heads, 1)
    index = jnp.arange(s.size, dtype=jnp.int32)
    used = jnp.where(key_positions >= 0, index + 1, 0).max(2)
    arrays = [
        rows,
        k,
        key_positions.astype(jnp.int32)[:, :, None],
        per_row(less, -LEAST),
        per_row(limit, -1),
    ]
    if bias is not None:
        arrays.append(bias[:, :, None])
    if s.sunk and sinks is not None:
        each = einops.repeat(
            sinks * LOG2_E, "b (g r) -> b g (m r)", g=s.groups, m=s.queries
        )
        arrays.append(per_row(each, 0.0))
    inputs, outputs = plan.inputs(), plan.outputs()
    call = pl.pallas_call(
        functools.partial(_kernel, plan),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=plan.grid,
            in_specs=[o.spec for o in inputs],
            out_specs=[o.spec for o in outputs],
            scratch_shapes=[pltpu.VMEM(*array) for array in plan.scratch()],
        ),
        out_shape=[jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=vmem,
        ),
        cost_estimate=plan.cost,
        interpret=interpret,
        name="attention_columns",
    )
    (sums,) = call(plan.ends(used).astype(jnp.int32), *arrays)
    return sums[:, :, 0]


def _kernel(plan: Plan, ends, *refs) -> None:
    inputs = plan.inputs()
    named = dict(zip([o.name for o in inputs], refs))
    sums, less, limit, *stats = refs[len(inputs) :]
    b, g, sweep, t = (pl.program_id(i) for i in range(4))
    has_tokens = t < ends[b * (plan.shape.groups // plan.groups) + g]
    is_last = sweep == plan.sweeps - 1

    @pl.when((sweep == 0) & (t == 0))
    def _():
        for c in range(plan.chunks):
            limit[c] = _spread(named["limit"][0, c])

        def spread(i) -> None:
            g, c = _split(plan, i)
            less[i] = _spread(named["less"][0, g, c])
            for x in stats:
                top = jnp.full(less.shape[1:], LEAST)
                total = jnp.zeros(less.shape[1:])
                if plan.shape.sunk:  # the first score; one lane of the total has it
                    lane = lax.broadcasted_iota(jnp.int32, less.shape[1:], 1)
                    top = _spread(named["sinks"][0, g, c])
                    total = jnp.where(lane == 0, 1.0, 0.0)
                x[i] = jnp.concatenate([top, total], 1)

        vectors.each(plan.groups * plan.chunks, spread)

    def scores(i) -> Array:
        return _products(plan, named, *_split(plan, i))

    if stats:

        @pl.when((sweep == 0) & has_tokens)
        def _():
            def fold(i, products) -> None:
                s = _masked(plan, named, limit, t, *_split(plan, i), products)
                _fold(plan, stats[0], i, s)

            vectors.each(plan.groups * plan.chunks, fold, scores)

        @pl.when((sweep == 1) & (t == 0))
        def _():
            def finish(i) -> None:
                top = stats[0][i, :, : layout.LANES]
                total = stats[0][i, :, layout.LANES :].sum(1, keepdims=True)
                total = jnp.where(total == 0, 1.0, total)
                less[i] = less[i] + top + jnp.log(total) * LOG2_E

            vectors.each(plan.groups * plan.chunks, finish)

    @pl.when(is_last & jnp.logical_not(has_tokens))
    def _():
        sums[...] = jnp.zeros_like(sums)

    @pl.when(is_last & has_tokens)
    def _():
        sums[...] = jnp.zeros_like(sums)

        def put(i, products) -> None:
            g, c = _split(plan, i)
            s = _masked(plan, named, limit, t, g, c, products)
            s = s - vectors.across(less[i], plan.block)
            if plan.shape.largest:
                column = jnp.exp2(s.max(0, keepdims=True))
                sums[0, g] = jnp.maximum(sums[0, g], column)
            else:
                sums[0, g] = sums[0, g] + jnp.exp2(s).sum(0, keepdims=True)

        vectors.each(plan.groups * plan.chunks, put, scores)


def _split(plan: Plan, i: Any) -> tuple[Any, Any]:
    """Return the KV head and the chunk of item `i`."""
    g = tiling.divide(i, plan.chunks)
    return g, i - g * plan.chunks


def _spread(x: Array) -> Array:
    """Turn [1, rows] into [rows, 128], the same in every lane."""
    return jnp.broadcast_to(x, (layout.LANES, x.shape[1])).T


def _products(plan: Plan, named, g, c) -> Array:
    """Return float32[rows, block]: the products of chunk `c` of KV head `g`."""
    compute = jnp.promote_types(plan.shape.dtype, jnp.bfloat16)
    return lax.dot_general(
        named["q"][0, g, c].astype(compute),
        named["k"][0, g].astype(compute),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if compute == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _masked(plan: Plan, named, limit, t, g, c, s: Array) -> Array:
    """Return scores of base 2, UNSEEN where the query does not see the slot."""
    shape = plan.shape
    if shape.softcap:
        s = jnp.tanh(s * (1 / shape.softcap)) * (shape.softcap * LOG2_E)
    else:
        s = s * LOG2_E
    if shape.biased:
        s = s + named["bias"][0, g] * LOG2_E
    held = named["held"][0, g]
    held = jnp.where(held < 0, NEVER, held)
    if shape.size % plan.block:  # of the last block a part is outside
        slot = t * plan.block + lax.broadcasted_iota(jnp.int32, held.shape, 1)
        held = jnp.where(slot < shape.size, held, NEVER)
    # A select, not a product: a slot without a token may hold NaN.
    return jnp.where(held <= vectors.across(limit[c], plan.block), s, UNSEEN)


def _fold(plan: Plan, stats, i, s: Array) -> None:
    before, total = stats[i, :, : layout.LANES], stats[i, :, layout.LANES :]
    top = jnp.maximum(before, s.max(1, keepdims=True))
    weights = jnp.exp2(s - vectors.across(top, plan.block))
    total = total * jnp.exp2(before - top) + vectors.lane_sums(weights)
    stats[i] = jnp.concatenate([top, total], 1)
