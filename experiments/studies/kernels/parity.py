"""Compare every kernel with its reference on this machine's device.

Each case is also run with a planted fault, which its bound must tell from the right
call. Slots that no node sees hold NaN.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels import block_traffic, int4_packing, paged_tree_attention, verify
from kernels.paged_tree_attention import api as paged
from kernels.tree_attention import api as dense
from kernels.tree_attention import pallas_tpu
from kernels.tree_attention import reference as attention_reference
from kernels.verify import reference as vocabulary_reference
from models.base import pack_bits

DIM, GROUPS, HEADS = 128, 4, 4
SCALE = DIM**-0.5
# bfloat16 rounds the weights, the products' factors and the output, by 2^-9 each.
BOUND = 2e-2
SUMS = 1e-4  # float32 sums of 128k exponentials, in another order


class Case(NamedTuple):
    """One comparison: `call()` gives arrays that are to equal those of `truth()`.

    `faulty` is the call with a planted fault; `form` is the one that runs.
    """

    name: str
    form: str
    call: Callable[[], Any]
    truth: Callable[[], Any]
    faulty: Callable[[], Any]
    bound: float


# Compiled once for the forms of a call.
_attention = jax.jit(
    attention_reference.tree_attention,
    static_argnames=("window", "softcap", "scale"),
)
_residual = jax.jit(vocabulary_reference.residual)
_thresholds = jax.jit(vocabulary_reference.thresholds)


@jax.jit
def _verify(heat: Array, logits: Array, tokens: Array, noise: Array, depth: Array):
    heat = jnp.broadcast_to(heat, depth.shape)
    each = jnp.take_along_axis(noise, depth[..., None], 1)
    return vocabulary_reference.verify(logits, heat, tokens, each)


def rows(settings: Any) -> Iterator[dict[str, Any]]:
    """Run every case of the forms in `settings`; yield its row."""
    ran = set()
    for case in cases(settings):
        if (case.name, case.form) in ran:  # what falls back to XLA was run as XLA
            continue
        ran.add((case.name, case.form))
        truth = jax.tree.map(np.asarray, case.truth())
        right = apart(case.call(), truth)
        wrong = apart(case.faulty(), truth)
        yield {
            "name": case.name,
            "form": case.form,
            "apart": right,
            "bound": case.bound,
            "fault": min(wrong, 1e30),  # JSON has no infinity
            "equal": right <= case.bound < wrong,
        }


def apart(got: Any, expected: Any) -> float:
    """Return the largest difference of two trees, relative to values above one.

    NaN and lone infinities count 1e30.
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        a = np.asarray(jnp.asarray(a).astype(jnp.float32), np.float64)
        b = np.asarray(jnp.asarray(b).astype(jnp.float32), np.float64)
        same = (a == b) | (np.isneginf(a) & np.isneginf(b))
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(same, 0, a) - np.where(same, 0, b))
            difference = difference / np.maximum(1, np.abs(np.where(same, 1, b)))
        worst = max(
            worst, float(np.nan_to_num(difference, nan=1e30, posinf=1e30).max())
        )
    return worst


def cases(settings: Any) -> Iterator[Case]:
    """Yield the cases of tree attention, in rows and pages, and of the passes."""
    for form in settings.forms:
        for nodes in settings.nodes:
            yield attention(settings, form, nodes, jnp.bfloat16)
            yield attention(settings, form, nodes, jnp.bfloat16, page=settings.page)
            yield logits(settings, form, nodes)
            yield residual(settings, form, nodes)
        most = max(settings.nodes)
        softened = {"window": settings.size // 5, "softcap": 30.0}
        yield attention(settings, form, most, jnp.bfloat16, **softened)
        yield attention(settings, form, most, jnp.float16)
        yield attention(settings, form, most, jnp.float32)
        for stored in (jnp.int8, int4_packing.DTYPE):
            yield attention(settings, form, most, jnp.bfloat16, stored=stored)
        yield thresholds(settings, form)


def attention(
    settings: Any,
    form: str,
    nodes: int,
    dtype: Any,
    *,
    stored: Any = None,
    page: int = 0,
    window: int = 0,
    softcap: float = 0.0,
) -> Case:
    """Make a case of ragged rows, random trees and NaN where nobody looks.

    Planted: every row is one slot shorter.
    """
    size, batch = settings.size, settings.batch
    shape = (batch, GROUPS, size, DIM)
    keys = jax.random.split(jax.random.key(nodes), 4)
    lengths = np.linspace(0, size - nodes, batch).astype(np.int32)
    lengths[1] = 3  # where one slot weighs much
    own = _trees(np.random.default_rng(nodes), batch, nodes)
    ancestors = pack_bits(jnp.asarray(own))
    slots = np.broadcast_to(np.arange(size, dtype=np.int32), (batch, size))
    used = (slots < lengths[:, None] + nodes)[:, None, :, None]
    positions = jnp.asarray(lengths[:, None] + own.sum(-1) - 1, jnp.int32)
    given: dict[str, Any] = {}
    if window:
        given = {"positions": positions, "key_positions": jnp.asarray(slots)}
        given |= {"window": window}
    kept = jnp.dtype(stored or dtype)
    values = [jax.random.normal(key, shape) for key in keys[:2]]
    if stored is not None:
        most = 7 if int4_packing.packed(kept) else 127
        factors = [jnp.abs(x).max(-1) / most for x in values]
        values = [jnp.round(x / f[..., None]) for x, f in zip(values, factors)]
        given |= dict(zip(("k_scale", "v_scale"), factors))
    else:
        values = [jnp.where(used, x, jnp.nan) for x in values]
    packed = int4_packing.packed(kept)
    k, v = (int4_packing.pack(x) if packed else x.astype(kept) for x in values)
    q = jax.random.normal(keys[2], (batch, nodes, GROUPS * HEADS, DIM), dtype)
    static = pallas_tpu.Shape(
        *(batch, GROUPS, size, DIM, nodes, HEADS, jnp.dtype(dtype), kept),
        scaled=stored is not None,
        window=window,
        softcap=softcap,
        scale=SCALE,
    )
    options = {**given, "softcap": softcap, "scale": SCALE}
    arrays = {n: x for n, x in options.items() if isinstance(x, Array)}
    settled = {n: x for n, x in options.items() if n not in arrays}
    rows = jnp.asarray(lengths)
    truth = functools.partial(_attention, q, k, v, rows, ancestors, **options)
    if page:
        table = jax.random.permutation(keys[3], batch * size // page)
        table = table.reshape(batch, -1).astype(jnp.int32)
        pools = []
        for x in (k, v):
            cut = x.reshape(batch, GROUPS, -1, page, DIM).swapaxes(1, 2)
            pool = jnp.zeros((table.size, GROUPS, page, DIM), x.dtype)
            pools.append(pool.at[table].set(cut))
        static = dataclasses.replace(static, page=page, pages=table.size)
        label = taken(form, paged.choose, static)
        function: Callable = paged_tree_attention.paged_tree_attention
        held: tuple = (q, *pools, table)
    else:
        label = taken(form, dense.choose, static)
        function, held = dense.tree_attention, (q, k, v)
    run = jax.jit(functools.partial(function, kernel=form, **settled))
    words = [f"tree_attention N={nodes}", f"{jnp.dtype(dtype).name}"]
    words += [f"{kept.name} cache"] if stored is not None else []
    words += [f"pages of {page}"] if page else []
    words += [f"window {window}, softcap {softcap:g}"] if window else []
    bound = BOUND if dtype == jnp.bfloat16 else BOUND / 8
    return Case(
        ", ".join(words),
        label,
        functools.partial(run, *held, rows, ancestors, **arrays),
        truth,
        functools.partial(run, *held, jnp.maximum(rows - 1, 0), ancestors, **arrays),
        bound,
    )


def _trees(rng: np.random.Generator, batch: int, nodes: int) -> np.ndarray:
    """Draw trees: bool[B, N, N], the ancestors of each node and itself."""
    own = np.zeros((batch, nodes, nodes), bool)
    for b in range(batch):
        for i in range(nodes):
            if i:
                own[b, i] = own[b, rng.integers(i)]
            own[b, i, i] = True
    return own


def logits(settings: Any, form: str, nodes: int) -> Case:
    """Make a case of `verify`; planted: another temperature."""
    (given,) = _law(settings, nodes, 1)
    noise = jax.random.gumbel(jax.random.key(2), (settings.batch, 4, settings.vocab))
    depth = jnp.broadcast_to(jnp.arange(nodes) % 4, given.shape[:2])
    tokens = jnp.zeros((*given.shape[:2], 2), jnp.int32).at[..., 1].set(-1)

    def facts(found: Any) -> tuple:
        return found.best, found.drawn, found.top, found.lse, found.scores

    @jax.jit
    def run(heat: Array, given: Array, *arrays: Array) -> tuple:
        return facts(verify.verify(given, heat, *arrays, kernel=form))

    arrays = (given, tokens, noise, depth)

    return Case(
        f"verify N={nodes}, V={settings.vocab}",
        taken(form, verify.choose, _over(given)),
        functools.partial(run, 0.8, *arrays),
        lambda: facts(_verify(0.8, *arrays)),
        functools.partial(run, 0.81, *arrays),
        SUMS,
    )


def residual(settings: Any, form: str, nodes: int) -> Case:
    """Make a case of `residual`; planted: the laws exchanged."""
    p, q = _law(settings, nodes, 2)
    lses = [jax.nn.logsumexp(x, -1) for x in (p, q)]
    noise = jax.random.gumbel(jax.random.key(5), p.shape)

    def facts(found: Any) -> tuple:
        return found.token, found.mass

    @jax.jit
    def run(*arrays: Array) -> tuple:
        return facts(verify.residual(*arrays, kernel=form))

    return Case(
        f"residual N={nodes}, V={settings.vocab}",
        taken(form, verify.choose, _over(p)),
        functools.partial(run, p, q, *lses, noise),
        lambda: facts(_residual(p, q, *lses, noise)),
        functools.partial(run, q, p, *lses[::-1], noise),
        SUMS,
    )


def thresholds(settings: Any, form: str) -> Case:
    """Make a case of `thresholds`; planted: one token more."""
    (given,) = _law(settings, max(settings.nodes), 1)
    k = jnp.full(given.shape[:2], 50)
    mass = jnp.full(given.shape[:2], 0.9)

    run = jax.jit(functools.partial(verify.thresholds, kernel=form))

    return Case(
        f"thresholds N={given.shape[1]}, V={settings.vocab}",
        taken(form, functools.partial(verify.choose, search=True), _over(given)),
        functools.partial(run, given, k, mass),
        functools.partial(_thresholds, given, k, mass),
        functools.partial(run, given, k + 1, mass),
        0.0,
    )


def _law(settings: Any, nodes: int, count: int) -> list[Array]:
    keys = jax.random.split(jax.random.key(nodes), count)
    shape = (settings.batch, nodes, settings.vocab)
    return [3 * jax.random.normal(key, shape) for key in keys]


def _over(logits: Array) -> verify.Shape:
    batch, nodes, vocab = logits.shape
    return verify.Shape(batch, nodes, vocab, logits.dtype)


def taken(form: str, choose: Callable, shape: Any) -> str:
    """Return the form that runs where `form` is asked for."""
    chosen: str = choose(form, block_traffic.platform(), shape).form
    return chosen
