"""One pass over logits for Hopper GPUs, in Mosaic GPU.

A program computes one node over one of `runs` stretches of the vocabulary. So a small
batch still fills the machine; the stretches are merged like parts of a vocabulary. Each
of 128 threads keeps the winners and the sums of its own lanes of `LANES` tokens, with
several loads in flight. Threads synchronise once, in the end. A node reads the row of
noise of its depth, which for other nodes of that depth is in the second-level cache.

Among equals the lowest token wins: a lane keeps its first, lanes and stretches compare
ids. The scores of given tokens are a separate gather.

There is no form of `thresholds`: it scans a row 64 times, and a row of 128k logits does
not fit the fast memory of a multiprocessor.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels.verify import law_statistics, reference
from kernels.verify.law_statistics import Facts, Rest
from kernels.verify.tiling import Shape

LANES = 512  # tokens of a load: four a thread
LOADS = 4  # in flight
PROGRAMS = 1056  # eight for each multiprocessor of an H100: the target of `runs`
LOG2E = 1.4426950408889634
LAST = np.int32(np.iinfo(np.int32).max)
NO_SEARCH = "a row of logits does not fit a GPU multiprocessor's fast memory"

Step = Callable[..., tuple]


def reason_against(shape: Shape) -> str:
    """Return why a call cannot use this form; "" if it can."""
    if shape.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return f"logits are {shape.dtype}: 16 or 32 bits are needed"
    if shape.vocab < LANES:
        return f"V={shape.vocab}: at least {LANES} tokens are needed"
    return ""


@dataclasses.dataclass(frozen=True)
class Cut:
    """`runs` stretches of `blocks` blocks (fewer in the last) of `loads` loads."""

    shape: Shape
    loads: int
    blocks: int
    runs: int

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return self.loads * LANES

    @property
    def vector(self) -> int:
        """Consecutive tokens of a thread; one where rows are not aligned to four."""
        return 1 if self.shape.vocab % 4 else 4


def cut(shape: Shape) -> Cut:
    """Choose the fewest stretches that make enough programs, of the largest blocks."""
    nodes = shape.batch * shape.nodes
    loads = LOADS
    while loads > 1 and (
        loads * LANES > shape.vocab or nodes * shape.vocab < PROGRAMS * loads * LANES
    ):
        loads //= 2
    count = -(-shape.vocab // (loads * LANES))
    blocks = -(-count // min(count, -(-PROGRAMS // nodes)))
    return Cut(shape, loads, blocks, -(-count // blocks))


def verify(
    shape: Shape,
    logits: Array,
    temperature: Array,
    tokens: Array,
    noise: Array | None,
    depth: Array | None,
    *,
    interpret: Any = False,
) -> Facts:
    """Compute `Facts`; `noise` [B, P, V] by `depth` int32[B, N].

    Other arguments as in `reference.verify`.
    """
    inputs = {"logits": logits, "temperature": temperature}
    kinds = {"top": jnp.float32, "best": jnp.int32, "total": jnp.float32}
    if noise is not None:
        assert depth is not None
        inputs |= {"noise": noise, "depth": depth}
        kinds |= {"race": jnp.float32, "drawn": jnp.int32}
    outputs = _call(shape, _verify, inputs, kinds, interpret)
    top, best = outputs["top"], outputs["best"]
    lse = top / temperature + jnp.log(outputs["total"])
    race = outputs.get("race", top / temperature)
    none = jnp.zeros((*top.shape, 0), jnp.float32)
    parts = Facts(best, top, lse, none, outputs.get("drawn", best), race)
    scores = reference.scores(logits, temperature, tokens)
    return law_statistics.merge(parts)._replace(scores=scores)


def residual(
    shape: Shape,
    p_logits: Array,
    q_logits: Array,
    p_lse: Array,
    q_lse: Array,
    noise: Array,
    *,
    interpret: Any = False,
) -> Rest:
    """Compute `Rest`; arguments as in `reference.residual`."""
    inputs = {"p": p_logits, "q": q_logits, "noise": noise}
    inputs |= {"p_lse": p_lse, "q_lse": q_lse}
    kinds = {"race": jnp.float32, "drawn": jnp.int32, "mass": jnp.float32}
    kinds |= {"spare_race": jnp.float32, "spare": jnp.int32}
    outputs = _call(shape, _residual, inputs, kinds, interpret)
    return law_statistics.merge_rest(Rest(**outputs))


def _call(
    shape: Shape, kernel: Callable, inputs: dict, kinds: dict, interpret: Any
) -> dict[str, Array]:
    """Run `kernel`; return the outputs of each stretch and node, `[runs, B, N]`.

    `inputs` are the arrays by name, `kinds` the outputs' dtypes by name.
    """
    by = cut(shape)
    names = [*inputs, *kinds]

    def body(*refs):
        kernel(by, bool(interpret), dict(zip(names, refs)))

    lead = (by.runs, shape.batch, shape.nodes)
    call = plgpu.kernel(
        body,
        out_type=[jax.ShapeDtypeStruct(lead, kind) for kind in kinds.values()],
        grid=(shape.nodes, by.runs, shape.batch),
        grid_names=("node", "run", "row"),
        **({"interpret": interpret} if interpret else {}),
    )
    return dict(zip(kinds, call(*inputs.values())))


def _verify(by: Cut, interpret: bool, at: dict) -> None:
    run, b, n = place = _place()
    heat = at["temperature"][b, n]
    fold = LOG2E / heat
    rows = [(at["logits"], b, n)]
    if "noise" in at:
        rows.append((at["noise"], b, at["depth"][b, n]))

    def step(carry: tuple, ids: Array, inside: Array, values: list) -> tuple:
        top, best, total, *race = carry
        logits = jnp.where(inside, values[0], -jnp.inf)
        less = jnp.exp2(_apart(logits, top) * fold)
        total = jnp.where(logits > top, total * less + 1.0, total + less)
        updated = (*_race(top, best, logits, ids), total)
        if "noise" in at:
            updated += _race(race[0], race[1], logits / heat + values[1], ids)
        return updated

    def begin(ids: Array, full: Callable) -> tuple:
        least = full(-jnp.inf)
        return (least, ids, full(0.0), least, ids)[: 5 if "noise" in at else 3]

    top, best, total, *race = _pass(by, interpret, run, rows, begin, step)
    high, at["best"][place] = _winner(top, best)
    at["top"][place] = high
    at["total"][place] = (total * jnp.exp2(_apart(top, high) * fold)).sum()
    if race:
        at["race"][place], at["drawn"][place] = _winner(*race)


def _residual(by: Cut, interpret: bool, at: dict) -> None:
    run, b, n = place = _place()
    lses = at["p_lse"][b, n], at["q_lse"][b, n]

    def step(carry: tuple, ids: Array, inside: Array, values: list) -> tuple:
        race, drawn, mass, spare_race, spare = carry
        p, q = (values[i] - lses[i] for i in range(2))
        rest = jnp.maximum(jnp.exp(p) - jnp.exp(q), 0.0)
        mass = mass + jnp.where(inside, rest, 0.0)
        won = _race(race, drawn, jnp.log(rest) + values[2], ids)
        return *won, mass, *_race(spare_race, spare, p + values[2], ids)

    def begin(ids: Array, full: Callable) -> tuple:
        return full(-jnp.inf), ids, full(0.0), full(-jnp.inf), ids

    rows = [(at[name], b, n) for name in ("p", "q", "noise")]
    race, drawn, mass, *spare = _pass(by, interpret, run, rows, begin, step)
    at["race"][place], at["drawn"][place] = _winner(race, drawn)
    at["mass"][place] = mass.sum()
    at["spare_race"][place], at["spare"][place] = _winner(*spare)


def _place() -> tuple[Array, Array, Array]:
    run, row, node = (lax.axis_index(name) for name in ("run", "row", "node"))
    return run, row, node


def _pass(
    by: Cut, interpret: bool, run: Array, rows: list, begin: Callable, step: Step
) -> tuple:
    """Run `step` over the loads of a stretch, from `begin(ids, full)` of its lanes.

    The last block is moved to end with the vocabulary; its lanes that the block before
    it has read are not `inside`.
    """
    vocab, size = by.shape.vocab, np.int32(by.size)
    lanes = plgpu.Layout.WG_STRIDED((LANES,), vec_size=by.vector)

    def cast(x: Array) -> Array:  # the interpreter has no register layouts
        return x if interpret else plgpu.layout_cast(x, lanes)

    lane = cast(lax.broadcasted_iota(jnp.int32, (LANES,), 0))
    first = run * np.int32(by.blocks)
    count = np.int32(-(-vocab // by.size))
    steps = jnp.minimum(np.int32(by.blocks), count - first)

    def block(i: Array, carry: tuple) -> tuple:
        start = (first + i) * size
        moved = jnp.minimum(start, np.int32(vocab) - size)
        starts = [moved + np.int32(j * LANES) for j in range(by.loads)]
        # All loads before the first use.
        loads = [
            [cast(ref[b, n, pl.ds(at, LANES)]) for ref, b, n in rows] for at in starts
        ]
        for at, values in zip(starts, loads):
            ids = at + lane
            values = [x.astype(jnp.float32) for x in values]
            carry = step(carry, ids, ids >= start, values)
        return carry

    def full(value: float) -> Array:
        return cast(jnp.full((LANES,), value, jnp.float32))

    return lax.fori_loop(0, steps, block, begin(first * size + lane, full))


def _race(value: Array, token: Array, values: Array, ids: Array) -> tuple:
    """Keep each lane's greatest value so far and its token."""
    better = values > value
    return jnp.where(better, values, value), jnp.where(better, ids, token)


def _winner(value: Array, token: Array) -> tuple[Array, Array]:
    """Return the greatest of all lanes; among equals, the lowest token."""
    top = value.max()
    return top, jnp.where(value == top, token, LAST).min()


def _apart(a: Array, b: Array) -> Array:
    """Return -|a - b|, and 0 for infinities that are equal."""
    return jnp.where(a == b, 0.0, -jnp.abs(a - b))
