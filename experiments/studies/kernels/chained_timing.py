"""Time kernels inside one program: each call waits for the one before.

A single dispatch measures the launch. Here a compiled loop calls a kernel on one
operand after another, as the layers of a model do, so that no operand is in the
second-level cache when its turn comes.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from experiments.studies.kernels.parity import taken
from kernels import aot, chips, paged_tree_attention, tree_attention, verify
from kernels.paged_tree_attention import api as paged
from kernels.tree_attention import api as dense
from kernels.tree_attention import xla
from models.base import pack_bits

Step = Callable[[Any, Any], Any]


def seconds_a_call(
    step: Step, state: Any, operands: Sequence[Any], loops: int, repeats: int
) -> float:
    """Return the median seconds of `state = step(state, operand)`.

    Args:
        step: the call; its result is of the form of `state`.
        state: arrays that each call makes from those before.
        operands: what the calls read in turn, each in its own memory.
        loops: how often all operands are read in one program.
        repeats: runs of the program.
    """

    @jax.jit
    def run(state: Any, operands: Any) -> Any:
        def body(_: Array, state: Any) -> Any:
            for operand in operands:
                # Else what depends on the operand alone would leave the loop.
                state = step(*lax.optimization_barrier((state, operand)))
            return state

        return lax.fori_loop(0, loops, body, state)

    jax.block_until_ready(run(state, tuple(operands)))
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(run(state, tuple(operands)))
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) / loops / len(operands)


def ceilings(settings: Any) -> dict[str, float]:
    """Measure what the device can do: bytes and bfloat16 operations a second.

    GB/s of a copy (read and written), of a sum, and of a matrix times a vector; the
    best of them is `gb_s`.
    """
    repeats, side = settings.repeats, settings.product_side
    x = jnp.ones((settings.copy_bytes // 4,), jnp.float32)

    def rate(step: Step, state: Any, operand: Any, size: int) -> float:
        return size / seconds_a_call(step, state, [operand], 4, repeats) / 1e9

    rates = {"copy": rate(lambda x, one: x + one, x, jnp.float32(1), 2 * x.nbytes)}
    rates["sum"] = rate(lambda total, x: total + x.sum(), jnp.float32(0), x, x.nbytes)
    keys = jax.random.split(jax.random.key(0), 2)
    wide = jax.random.normal(
        keys[0], (settings.copy_bytes // 2 // side, side), "bfloat16"
    )
    column = jax.random.normal(keys[1], (side,), jnp.bfloat16)
    through = lambda y, a: y + 1e-9 * (a @ y).max()
    rates["matrix_vector"] = rate(through, column, wide, wide.nbytes)
    a, b = (jax.random.normal(key, (side, side), jnp.bfloat16) for key in keys)
    multiply = lambda a, b: (a @ b) / jnp.bfloat16(math.sqrt(side))
    spent = seconds_a_call(multiply, a, [b], 4, repeats)
    chip = chips.of(jax.local_devices()[0])
    return {
        **rates,
        "gb_s": max(rates.values()),
        "flops": 2.0 * side**3 / spent,
        "sheet_gb_s": chip.bandwidth / 1e9 if chip else 0.0,
        "sheet_flops": chip.flops if chip else 0.0,
    }


def attention(settings: Any, gb_s: float) -> Iterator[dict[str, Any]]:
    """Time tree attention by form, batch, size and nodes: rows, then pages."""
    groups, heads = aot.MODELS[settings.model]
    for batch, size in settings.caches:
        caches = _caches(settings, batch, groups, size)
        page = settings.page
        pools = [tuple(x.reshape(-1, groups, page, 128) for x in kv) for kv in caches]
        table = jax.random.permutation(jax.random.key(3), batch * size // page)
        table = table.reshape(batch, -1).astype(jnp.int32)
        for nodes in settings.nodes:
            q, lengths, chain = _block(batch, groups * heads, size, nodes)
            shape = aot.tree_attention_shape(settings.model, batch, size, nodes)
            in_pages = replace(shape, page=page, pages=table.size)
            read = (*caches[0], q, q)
            for form in settings.forms:
                options: dict[str, Any] = {"scale": 128**-0.5, "kernel": form}

                def rows(q: Array, kv: Any, options=options) -> Array:
                    arguments = (q, *kv, lengths, chain)  # noqa: B023 (called here)
                    return tree_attention.tree_attention(*arguments, **options)[0]

                def pages(q: Array, kv: Any, options=options) -> Array:
                    arguments = (q, *kv, table, lengths, chain)  # noqa: B023
                    call = paged_tree_attention.paged_tree_attention
                    return call(*arguments, **options)[0]

                label = taken(form, dense.choose, shape)
                where = {"batch": batch, "size": size, "nodes": nodes}
                yield _row(settings, label, where, rows, q, caches, read, gb_s)
                label = f"{taken(form, paged.choose, in_pages)}, pages"
                yield _row(settings, label, where, pages, q, pools, read, gb_s)
            if nodes == 1 and settings.cudnn:
                turned = [tuple(x.swapaxes(1, 2) for x in kv) for kv in caches]

                def cudnn(q: Array, kv: Any) -> Array:
                    attend = jax.nn.dot_product_attention
                    return attend(q, *kv, implementation="cudnn")

                yield _row(settings, "cuDNN", where, cudnn, q, turned, read, gb_s)


def stretches(settings: Any, gb_s: float) -> Iterator[dict[str, Any]]:
    """Time the XLA form by the slots of a step of its loop."""
    groups, heads = aot.MODELS[settings.model]
    for batch, size in settings.caches:
        caches = _caches(settings, batch, groups, size)
        for nodes in settings.nodes:
            q, lengths, chain = _block(batch, groups * heads, size, nodes)
            for stretch in settings.stretches:
                if stretch > size:
                    continue

                def call(q: Array, kv: Any, stretch=stretch) -> Array:
                    return xla.tree_attention(
                        *(q, *kv, lengths, chain),  # noqa: B023 (called here)
                        scale=128**-0.5,
                        stretch=stretch,
                    )[0]

                where = {"batch": batch, "size": size, "nodes": nodes}
                where["stretch"] = stretch
                read = (*caches[0], q, q)
                yield _row(settings, "xla", where, call, q, caches, read, gb_s)


def vocabulary(settings: Any, gb_s: float) -> Iterator[dict[str, Any]]:
    """Time `verify`, with noise by depth, `residual` and `thresholds` over V."""
    key, batch, size = jax.random.key(1), settings.batch, settings.vocab
    for nodes in settings.nodes:
        wide = (batch, nodes, size)
        count = _count(settings, 4 * math.prod(wide))
        keys = jax.random.split(key, count)
        laws = [jax.random.normal(k, wide) for k in keys]
        rows = jax.random.gumbel(key, (batch, 4, size))
        noise = jax.random.gumbel(key, wide)
        depth = jnp.broadcast_to(jnp.arange(nodes) % 4, wide[:2])
        tokens = jnp.zeros((batch, nodes, 1), jnp.int32)
        shape = verify.Shape(*wide, jnp.dtype(jnp.float32))
        where = {"batch": batch, "size": size, "nodes": nodes}
        least = jnp.zeros(wide[:2])
        for form in settings.forms:

            def one(state: Array, logits: Array, form=form) -> Array:
                facts = verify.verify(
                    *(logits, 0.8 + state, tokens, rows, depth),  # noqa: B023
                    kernel=form,
                )
                return 1e-9 * (facts.lse + facts.drawn)

            def two(state: Array, logits: Array, form=form) -> Array:
                lse = 12.0 + state
                rest = verify.residual(
                    *(logits, laws[0], lse, lse, noise),  # noqa: B023
                    kernel=form,
                )
                return 1e-9 * (rest.mass + rest.token)

            def three(state: Array, logits: Array, form=form) -> Array:
                first, second = verify.thresholds(logits, 50, 0.9 + state, kernel=form)
                return 1e-9 * (first + second)

            for name, step, search, read in (
                ("verify", one, False, (laws[0], rows)),
                ("residual", two, False, (laws[0], laws[0], noise)),
                ("thresholds", three, True, (laws[0],)),
            ):
                choose = functools.partial(verify.choose, search=search)
                label = f"{name}: {taken(form, choose, shape)}"
                yield _row(settings, label, where, step, least, laws, read, gb_s)


def _block(batch: int, heads: int, size: int, nodes: int) -> tuple[Array, ...]:
    """Make q, lengths and ancestors of a chain at the end of a full cache."""
    q = jax.random.normal(jax.random.key(2), (batch, nodes, heads, 128), jnp.bfloat16)
    chain = pack_bits(jnp.tril(jnp.ones((batch, nodes, nodes), bool)))
    return q, jnp.full((batch,), size - nodes, jnp.int32), chain


def _caches(settings: Any, batch: int, groups: int, size: int) -> list[tuple]:
    """Make the keys and values of as many layers as no fast memory holds."""
    shape = (batch, groups, size, 128)
    count = _count(settings, 4 * math.prod(shape))
    keys = jax.random.split(jax.random.key(0), (count, 2))
    make = jax.jit(lambda key: jax.random.normal(key, shape, jnp.bfloat16))
    return [(make(k), make(v)) for k, v in keys]


def _count(settings: Any, size: int) -> int:
    return max(1, min(settings.layers, -(-settings.resident_bytes // size)))


def _row(
    settings: Any,
    form: str,
    where: dict[str, int],
    step: Step,
    state: Any,
    operands: Sequence[Any],
    read: Sequence[Array],
    gb_s: float,
) -> dict[str, Any]:
    """Time a step that moves the bytes of `read` at least, and make its row."""
    size = sum(x.nbytes for x in read)
    least = size / (1e9 * gb_s) * len(operands)
    loops = max(1, math.ceil(settings.seconds / least))
    spent = seconds_a_call(step, state, operands, loops, settings.repeats)
    rate = size / spent / 1e9
    return {
        "form": form,
        **where,
        "us": 1e6 * spent,
        "gb_s": rate,
        "share": rate / gb_s,
    }
