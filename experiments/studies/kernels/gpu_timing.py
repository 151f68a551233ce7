"""Time the kernels on a GPU: every ratio with a target, in one run.

Each cell is a median of repeated calls, beside XLA and a copy's bandwidth, both
measured in the same run. Settings of small sizes test this on any machine.
"""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from experiments.reporting.report import table
from experiments.run_folder import RunFolder
from kernels import (
    aot,
    block_traffic,
    dispatch,
    paged_tree_attention,
    tree_attention,
    verify,
)
from kernels.paged_tree_attention import api as paged
from kernels.tree_attention import api as dense
from models import base, transformer
from models.base import pack_bits
from models.cache_layouts import shared_prefix

TARGETS = """\
Held to: tree_attention at least 0.85 of the copy bandwidth for N <= 64, N = 64 at most
1.15 times N = 1, N = 1 not slower than cuDNN; verify at least 0.80 of the bandwidth;
Hydragen's throughput from the shortest to the longest prefix falls less than 15 %; a
plain step at MBU 0.75 or more, a round of 64 nodes at most 1.25 plain steps.
"""


def seconds(call: Callable, *arguments: Any, repeats: int) -> float:
    """Return the median seconds of `repeats` calls of a compiled function."""
    jax.block_until_ready(call(*arguments))
    spent = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def measure(settings: Any, store: RunFolder) -> dict[str, list]:
    """Measure all pieces, and store each as it ends: name -> rows."""
    store_piece = functools.partial(store.make, "gpu")
    bandwidth = store_piece("bandwidth", lambda: copy_bandwidth(settings))
    pieces = {"bandwidth": [bandwidth]}
    for name, make in (
        ("attention", attention),
        ("verify", vocabulary),
        ("residual", residual),
        ("hydragen", hydragen),
        ("rounds", rounds),
    ):
        pieces[name] = store_piece(
            name, functools.partial(make, settings, bandwidth["gb_s"])
        )
    return pieces


def copy_bandwidth(settings: Any) -> dict[str, float]:
    """Measure the GB/s, read and written, of adding one to an array."""
    x = jnp.zeros((settings.copy_bytes // 4,), jnp.float32)
    spent = seconds(jax.jit(lambda x: x + 1), x, repeats=settings.repeats)
    return {"gb_s": 2 * x.nbytes / spent / 1e9}


def attention(settings: Any, gb_s: float) -> list[dict[str, Any]]:
    """Time one layer's tree attention by form, size and nodes.

    The cache is read as rows and as pages in any order. cuDNN runs at one node.
    """
    groups, heads = aot.MODELS[settings.model]
    batch, page, dtype, rows = settings.batch, settings.page, jnp.bfloat16, []
    keys = jax.random.split(jax.random.key(0), 4)
    for size in settings.sizes:
        cache = (batch, groups, size, 128)
        k, v = (jax.random.normal(key, cache, dtype) for key in keys[:2])
        pools = [x.reshape(-1, groups, page, 128) for x in (k, v)]
        table = jax.random.permutation(keys[3], batch * size // page)
        table = table.reshape(batch, -1)
        for nodes in settings.nodes:
            q = jax.random.normal(keys[2], (batch, nodes, groups * heads, 128), dtype)
            chain = pack_bits(jnp.tril(jnp.ones((batch, nodes, nodes), bool)))
            lengths = jnp.full((batch,), size - nodes, jnp.int32)
            shape = aot.tree_attention_shape(settings.model, batch, size, nodes)
            paged_shape = replace(shape, page=page, pages=table.size)
            for form in settings.forms:
                options: dict[str, Any] = {"scale": 128**-0.5, "kernel": form}
                call = functools.partial(tree_attention.tree_attention, **options)
                arrays = (q, k, v, lengths, chain)
                spent = seconds(jax.jit(call), *arrays, repeats=settings.repeats)
                label = _taken(form, dense.choose, shape)
                rows.append(_row(label, size, nodes, spent, (k, v, q, q), gb_s))
                call = functools.partial(
                    paged_tree_attention.paged_tree_attention, **options
                )
                page_arrays = (q, *pools, table, lengths, chain)
                spent = seconds(jax.jit(call), *page_arrays, repeats=settings.repeats)
                label = _taken(form, paged.choose, paged_shape) + ", pages"
                rows.append(_row(label, size, nodes, spent, (k, v, q, q), gb_s))
            if nodes == 1 and settings.cudnn:
                transposed = [x.swapaxes(1, 2) for x in (k, v)]
                call = functools.partial(
                    jax.nn.dot_product_attention, implementation="cudnn"
                )
                spent = seconds(jax.jit(call), q, *transposed, repeats=settings.repeats)
                rows.append(_row("cudnn", size, nodes, spent, (k, v, q, q), gb_s))
    return rows


def vocabulary(settings: Any, gb_s: float) -> list[dict[str, Any]]:
    """Time the verification pass over the logits of N nodes, with noise by depth."""
    rows, key = [], jax.random.key(1)
    for nodes in settings.nodes:
        logits = jax.random.normal(key, (settings.batch, nodes, settings.vocab))
        noise = jax.random.gumbel(key, (settings.batch, 4, settings.vocab))
        depth = jnp.broadcast_to(jnp.arange(nodes) % 4, (settings.batch, nodes))
        tokens = jnp.zeros((settings.batch, nodes, 1), jnp.int32)
        for form in settings.forms:
            call = functools.partial(verify.verify, kernel=form)
            arrays = (logits, 0.8, tokens, noise, depth)
            spent = seconds(jax.jit(call), *arrays, repeats=settings.repeats)
            rows.append(_over(form, spent, logits, (logits, noise), gb_s))
    return rows


def residual(settings: Any, gb_s: float) -> list[dict[str, Any]]:
    """Time a draw from the residual law norm((p - q)+), at N nodes."""
    rows, keys = [], jax.random.split(jax.random.key(3), 3)
    for nodes in settings.nodes:
        wide = (settings.batch, nodes, settings.vocab)
        p, q = (jax.random.normal(key, wide) for key in keys[:2])
        lses = [jax.nn.logsumexp(x, -1) for x in (p, q)]
        noise = jax.random.gumbel(keys[2], wide)
        for form in settings.forms:
            call = functools.partial(verify.residual, kernel=form)
            arrays = (p, q, *lses, noise)
            spent = seconds(jax.jit(call), *arrays, repeats=settings.repeats)
            rows.append(_over(form, spent, p, (p, q, noise), gb_s))
    return rows


def hydragen(settings: Any, gb_s: float) -> list[dict[str, Any]]:
    """Measure a model's tokens/s with a shared prefix, and with copies of it."""
    lm, params = _model(settings)
    rows, batch = [], settings.shared_batch
    for prefix in settings.prefixes:
        size = prefix + settings.suffix
        template = jax.eval_shape(functools.partial(lm.init_cache, batch, size))
        forms: dict[str, Callable[[], Any]] = {}
        forms["shared"] = functools.partial(shared_prefix.shared, template, prefix)
        if prefix <= settings.largest_copied:
            forms["copied"] = functools.partial(lm.init_cache, batch, size)
        for form, make in forms.items():
            length = jnp.full((batch,), prefix + settings.suffix // 2, jnp.int32)
            spent = _step(lm, params, replace(make(), length=length), 1, settings)
            tokens = batch / spent
            rows.append({"form": form, "prefix": prefix, "tokens_s": tokens})
    return rows


def rounds(settings: Any, gb_s: float) -> list[dict[str, Any]]:
    """Time a plain step and a round of a tree, commit included, at batch 1."""
    lm, params = _model(settings)
    size, rows = settings.sizes[0], []
    for nodes in settings.nodes:
        cache = lm.init_cache(1, size)
        cache = cache.replace(length=jnp.full((1,), size // 2, jnp.int32))
        read = sum(x.nbytes for x in jax.tree.leaves(params))
        read += sum(x.nbytes for x in jax.tree.leaves(cache.layers)) // 2
        spent = _step(lm, params, cache, nodes, settings)
        mbu = read / spent / (gb_s * 1e9)
        rows.append({"nodes": nodes, "ms": 1e3 * spent, "mbu": mbu})
    return rows


def _model(settings: Any) -> tuple[Any, Any]:
    """Make a target of the named shape with random bfloat16 weights."""
    groups, heads = aot.MODELS[settings.model]
    config = transformer.Config(
        vocab_size=settings.vocab,
        d_model=settings.d_model,
        n_layers=settings.layers,
        n_heads=groups * heads,
        n_kv_heads=groups,
        head_dim=128,
        d_ff=settings.d_ff,
        max_positions=2**17,
        ropes=(transformer.rope(128, 500000.0),),
        tied=False,
    )
    lm = transformer.transformer(config, jnp.bfloat16, settings.forms[-1])

    def init(key: Any) -> Any:
        shapes = jax.eval_shape(lm.init, key)
        leaves, structure = jax.tree.flatten(shapes)
        keys = jax.random.split(key, len(leaves))
        weights = [
            0.02 * jax.random.normal(k, x.shape, jnp.bfloat16)
            for k, x in zip(keys, leaves)
        ]
        return jax.tree.unflatten(structure, weights)

    return lm, jax.jit(init)(jax.random.key(2))


def _step(lm: Any, params: Any, cache: Any, nodes: int, settings: Any) -> float:
    """Time a round in a compiled loop, in seconds.

    Each round commits the same simulated path, then resets the length: all cost equal.
    """
    count = settings.rounds
    start = cache.length + 0  # the cache itself is donated
    path = jnp.zeros((start.shape[0], min(3, nodes - 1)), jnp.int32)
    path = path + 1 + 2 * jnp.arange(path.shape[1])  # of a tree: slots must move

    def body(_: Any, carry: tuple) -> tuple:
        cache, token = carry
        tokens = jnp.broadcast_to(token[:, None], (start.shape[0], nodes))
        room = jnp.full_like(start, nodes)
        block = base.causal_block(tokens, cache.length, room, cache.size, base.ALL)
        out, cache = lm(params, cache, block)
        cache = cache.commit(jnp.minimum(path, nodes - 1), 0 * start + path.shape[1])
        return cache.replace(length=start), out.logits[:, -1].argmax(-1).astype("int32")

    @functools.partial(jax.jit, donate_argnums=1)
    def run(params: Any, cache: Any) -> Any:
        return jax.lax.fori_loop(0, count, body, (cache, 0 * start))[0]

    cache = jax.block_until_ready(run(params, cache))
    spent = []
    for _ in range(settings.repeats):
        begun = time.perf_counter()
        cache = jax.block_until_ready(run(params, cache))
        spent.append((time.perf_counter() - begun) / count)
    return statistics.median(spent)


def _taken(form: str, choose: Callable, shape: Any) -> str:
    """Name the requested form, and the fallback if no kernel supports the call."""
    actual = choose(form, block_traffic.platform(), shape).form
    return form if actual in (form, dispatch.GPU) else f"{form}: {actual}"


def _over(form: str, spent: float, logits: Any, arrays: Any, gb_s: float):
    """Make the row of a pass over `logits` that reads `arrays`."""
    batch, nodes, size = logits.shape
    shape = verify.Shape(batch, nodes, size, logits.dtype)
    label = _taken(form, verify.choose, shape)
    return _row(label, size, nodes, spent, arrays, gb_s)


def _row(form: str, size: int, nodes: int, spent: float, arrays: Any, gb_s: float):
    """Make a row of a call of `spent` seconds that reads `arrays`."""
    rate = sum(x.nbytes for x in arrays) / spent / 1e9
    return {
        "form": form,
        "size": size,
        "nodes": nodes,
        "ms": 1e3 * spent,
        "gb_s": rate,
        "share": rate / gb_s,
    }


def markdown(found: dict[str, list]) -> str:
    """Write the report's tables."""
    parts = [f"Copy bandwidth: {found['bandwidth'][0]['gb_s']:,.0f} GB/s.", "", TARGETS]
    heads = ("form", "S or V", "N", "ms", "GB/s", "÷ copy", "÷ N = 1", "÷ xla")
    for name in ("attention", "verify", "residual"):
        times = {(r["form"], r["size"], r["nodes"]): r["ms"] for r in found[name]}
        rows = []
        for row in found[name]:
            key = (row["form"], row["size"], row["nodes"])
            rows.append(
                [
                    *map(str, key),
                    f"{row['ms']:.3f}",
                    f"{row['gb_s']:,.0f}",
                    f"{row['share']:.2f}",
                    _ratio(row["ms"], times.get((key[0], key[1], 1))),
                    _ratio(row["ms"], times.get(("xla", *key[1:]))),
                ]
            )
        parts += [f"## {name}", "", table(heads, rows)]
    shortest_prefix: dict[str, float] = {}
    lines = []
    for row in found["hydragen"]:
        shortest = shortest_prefix.setdefault(row["form"], row["tokens_s"])
        lines.append(
            [
                row["form"],
                str(row["prefix"]),
                f"{row['tokens_s']:,.0f}",
                _ratio(row["tokens_s"], shortest),
            ]
        )
    parts += ["## hydragen", ""]
    parts.append(table(("form", "prefix", "tokens/s", "÷ shortest"), lines))
    plain = found["rounds"][0]["ms"]
    lines = [
        [str(r["nodes"]), f"{r['ms']:.2f}", _ratio(r["ms"], plain), f"{r['mbu']:.2f}"]
        for r in found["rounds"]
    ]
    parts += ["## rounds", "", table(("N", "ms", "÷ plain", "MBU"), lines)]
    return "\n".join(parts)


def _ratio(value: float, of: float | None) -> str:
    return "" if of is None else f"{value / of:.2f}"
