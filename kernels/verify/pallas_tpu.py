"""One pass over logits for TPUs, in blocks of the vocabulary.

The grid is (rows of the batch, tiles of nodes, blocks of tokens). The outputs hold the
winners so far: their blocks stay in fast memory until the last block of tokens. Sums
run as in a streamed softmax. Among equal values the first token wins: within a block by
the least id, across blocks because a later one must be greater.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.verify import reference
from kernels.verify.law_statistics import Facts, Rest
from kernels.verify.tiling import CHUNK, Plan, RestPlan, SearchPlan


def verify(
    plan: Plan,
    logits: Array,
    temperature: Array,
    tokens: Array,
    noise: Array | None,
    depth: Array | None,
    *,
    vmem: int | None = None,
    interpret: Any = False,
) -> Facts:
    """Compute `Facts` by the plan; arguments as in `reference.verify`.

    `noise` is [B, P, V] with `depth` int32[B, N], or [B, N, V] without.
    """
    arrays = {"logits": logits, "temperature": temperature[..., None], "tokens": tokens}
    if noise is not None:
        arrays["noise"] = noise
    if depth is not None:
        arrays["depth"] = depth[..., None]
    total = [pltpu.VMEM((plan.nodes, 1), jnp.float32)]
    outputs = _call(plan, _verify, arrays, total, vmem, interpret)
    best, top, lse = (outputs[name][..., 0] for name in ("best", "top", "lse"))
    none = jnp.zeros((*best.shape, 0), jnp.float32)
    scores = outputs.get("scores", none)
    if noise is None:
        return Facts(best, top, lse, scores, best, top / temperature)
    return Facts(
        best, top, lse, scores, outputs["drawn"][..., 0], outputs["race"][..., 0]
    )


def residual(
    plan: RestPlan,
    p_logits: Array,
    q_logits: Array,
    p_lse: Array,
    q_lse: Array,
    noise: Array,
    *,
    vmem: int | None = None,
    interpret: Any = False,
) -> Rest:
    """Compute `Rest` by the plan; arguments as in `reference.residual`."""
    arrays = {"p": p_logits, "q": q_logits, "noise": noise}
    arrays |= {"p_lse": p_lse[..., None], "q_lse": q_lse[..., None]}
    outputs = _call(plan, _residual, arrays, [], vmem, interpret)
    return Rest(**{name: outputs[name][..., 0] for name in Rest._fields})


def thresholds(
    plan: SearchPlan,
    logits: Array,
    k: Array,
    mass: Array,
    *,
    vmem: int | None = None,
    interpret: Any = False,
) -> tuple[Array, Array]:
    """Compute both thresholds by the plan; arguments as in `reference.thresholds`."""
    arrays = {"logits": logits, "k": k[..., None], "mass": mass[..., None]}
    outputs = _call(plan, _thresholds, arrays, [], vmem, interpret)
    return outputs["first"][..., 0], outputs["second"][..., 0]


def _call(plan, kernel, arrays, scratch, vmem, interpret) -> dict[str, Array]:
    inputs, outputs = plan.inputs(), plan.outputs()

    def body(*refs):
        kernel(plan, dict(zip(names, refs)), *refs[len(names) :])

    names = [o.name for o in inputs + outputs]
    call = pl.pallas_call(
        body,
        grid=plan.grid,
        in_specs=[o.spec for o in inputs],
        out_specs=[o.spec for o in outputs],
        out_shape=[jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs],
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem,
        ),
        cost_estimate=plan.cost,
        interpret=interpret,
        name=kernel.__name__.strip("_"),
    )
    results = call(*(arrays[o.name] for o in inputs))
    return dict(zip([o.name for o in outputs], results))


def _verify(plan: Plan, at: dict, total) -> None:
    s, v = plan.shape, pl.program_id(2)

    @pl.when(v == 0)
    def _():
        _begin(at, ("top", "lse", "race", "scores"), ("best", "drawn"), s.vocab)
        total[...] = jnp.zeros_like(total)

    ids, inside = _ids(plan, v)
    logits = jnp.where(inside, at["logits"][0].astype(jnp.float32), -jnp.inf)
    _race(at["top"], at["best"], logits, ids)
    scaled = logits / at["temperature"][0]
    # `lse` holds the running maximum until the last block.
    before = at["lse"][0]
    high = jnp.maximum(before, scaled.max(1, keepdims=True))
    some = jnp.where(high == -jnp.inf, 0.0, high)
    shrink = jnp.where(before == -jnp.inf, 0.0, jnp.exp(before - some))
    summed = jnp.exp(scaled - some).sum(1, keepdims=True)
    total[...] = total[...] * shrink + summed
    at["lse"][0] = high
    if s.noises:
        # Past the vocabulary noise may be NaN.
        noisy = jnp.where(inside, scaled + _noise(plan, at), -jnp.inf)
        _race(at["race"], at["drawn"], noisy, ids)
    if s.tokens:
        tokens = at["tokens"][0]
        lane = lax.broadcasted_iota(jnp.int32, tokens.shape, 1)
        scores = at["scores"][0]
        for m in range(s.tokens):
            here = jnp.where(ids == tokens[:, m : m + 1], scaled, -jnp.inf)
            score = jnp.where(lane == m, here.max(1, keepdims=True), -jnp.inf)
            scores = jnp.maximum(scores, score)
        at["scores"][0] = scores

    @pl.when(v == pl.num_programs(2) - 1)
    def _():
        at["lse"][0] = at["lse"][0] + jnp.log(total[...])


def _noise(plan: Plan, at: dict) -> Array:
    """Select the noise of each node's depth, a row a depth, without rounding."""
    if not plan.shape.shared:
        return at["noise"][0]
    depth = at["depth"][0]

    def choose(i: Array, chosen: Array) -> Array:
        row = at["noise"][0, pl.ds(i, 1), :]
        return jnp.where(depth == i, row, chosen)

    shape = (plan.nodes, plan.block)
    return lax.fori_loop(0, plan.shape.noises, choose, jnp.zeros(shape, jnp.float32))


def _residual(plan: RestPlan, at: dict) -> None:
    v = pl.program_id(2)

    @pl.when(v == 0)
    def _():
        names = ("race", "spare_race")
        _begin(at, names, ("drawn", "spare"), plan.shape.vocab)
        at["mass"][...] = jnp.zeros_like(at["mass"])

    ids, inside = _ids(plan, v)
    p = jnp.where(inside, at["p"][0].astype(jnp.float32), -jnp.inf) - at["p_lse"][0]
    q = jnp.where(inside, at["q"][0].astype(jnp.float32), -jnp.inf) - at["q_lse"][0]
    rest = jnp.maximum(jnp.exp(p) - jnp.exp(q), 0.0)
    noise = jnp.where(inside, at["noise"][0], 0.0)
    at["mass"][0] = at["mass"][0] + rest.sum(1, keepdims=True)
    _race(at["race"], at["drawn"], jnp.log(rest) + noise, ids)
    _race(at["spare_race"], at["spare"], p + noise, ids)


def _thresholds(plan: SearchPlan, at: dict) -> None:
    vocab, ref = plan.shape.vocab, at["logits"]
    column = (plan.nodes, 1)
    cut = vocab // CHUNK * CHUNK

    def over(function, start: Array) -> Array:
        """Fold `function(logits, carry)` over the pieces of the rows."""

        def piece(i, carry):
            at_ = pl.ds(pl.multiple_of(i * CHUNK, CHUNK), CHUNK)
            return function(ref[0, :, at_].astype(jnp.float32), carry)

        carry = lax.fori_loop(0, cut // CHUNK, piece, start)
        if cut < vocab:
            carry = function(ref[0, :, cut:].astype(jnp.float32), carry)
        return carry

    def total(weigh) -> Array:
        def add(x: Array, sums: Array) -> Array:
            return sums + weigh(x).sum(1, keepdims=True)

        return over(add, jnp.zeros(column, jnp.float32))

    k = jnp.clip(at["k"][0], 1, vocab).astype(jnp.float32)

    def enough(t: Array) -> Array:
        return total(lambda x: jnp.where(reference.ordered(x) >= t, 1.0, 0.0)) >= k

    first = reference.settle(enough, column)
    at["first"][0] = reference.value(first)
    mass = at["mass"][0]
    high = over(
        lambda x, top: jnp.maximum(top, x.max(1, keepdims=True)),
        jnp.full(column, -jnp.inf),
    )

    def weight(t: Array) -> Array:
        least = jnp.maximum(t, first)

        def weigh(x: Array) -> Array:
            return jnp.where(reference.ordered(x) >= least, jnp.exp(x - high), 0.0)

        return total(weigh)

    tiny = jnp.finfo(jnp.float32).tiny
    required = jnp.maximum(mass, tiny) * weight(first)
    second = reference.settle(lambda t: weight(t) >= required, column)
    at["second"][0] = jnp.where(mass < 1, reference.value(second), -jnp.inf)


def _begin(at: dict, values: tuple, tokens: tuple, vocab: int) -> None:
    for name in values:
        if name in at:
            at[name][...] = jnp.full(at[name].shape, -jnp.inf)
    for name in tokens:
        if name in at:
            at[name][...] = jnp.full(at[name].shape, vocab - 1, jnp.int32)


def _ids(plan: Plan, v: Array) -> tuple[Array, Array]:
    """Return the tokens of a block, int32[nodes, block], and whether they exist."""
    shape = (plan.nodes, plan.block)
    ids = v * np.int32(plan.block) + lax.broadcasted_iota(jnp.int32, shape, 1)
    return ids, ids < plan.shape.vocab


def _race(value, token, values: Array, ids: Array) -> None:
    """Keep the greatest value so far and its token."""
    top = values.max(1, keepdims=True)
    # float32 holds ids below 2^24 exactly, and its minimum is native.
    named = jnp.where(values == top, ids.astype(jnp.float32), 2.0**24)
    first = named.min(1, keepdims=True).astype(jnp.int32)
    better = top > value[0]
    token[0] = jnp.where(better, first, token[0])
    value[0] = jnp.where(better, top, value[0])
