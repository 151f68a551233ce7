"""Time models of named shapes with random weights: steps, trees and training."""

import functools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from models import base, transformer
from models.cache_layouts import shared_prefix
from training.loop import throughput, train_step
from training.objectives.language_models import next_token


def rounds(settings: Any, shape: Any, gb_s: float) -> Iterator[dict[str, Any]]:
    """Time a plain step and rounds of trees at batch 1, commit included.

    Yields a row for each form and number of nodes. `mbu` is the bytes of the weights
    and of the cache's used half over the time and the best bandwidth.
    """
    config, params = model(shape)
    for form in settings.forms:
        lm = transformer.transformer(config, jnp.bfloat16, form)
        for nodes in settings.nodes:
            cache = lm.init_cache(1, settings.size)
            cache = cache.replace(length=jnp.full((1,), settings.size // 2, jnp.int32))
            read = sum(x.nbytes for x in jax.tree.leaves(params))
            if not config.tied:  # of the embedding a step reads the block's rows
                read -= config.vocab_size * config.d_model * 2
            read += sum(x.nbytes for x in jax.tree.leaves(cache.layers)) // 2
            spent = seconds_a_round(lm, params, cache, nodes, settings)
            mbu = read / spent / (gb_s * 1e9)
            yield {"form": form, "nodes": nodes, "ms": 1e3 * spent, "mbu": mbu}


def prefixes(settings: Any, shape: Any) -> Iterator[dict[str, Any]]:
    """Measure tokens a second of many rows with one prefix, and with copies of it."""
    config, params = model(shape)
    batch = settings.shared_batch
    for form in settings.forms:
        lm = transformer.transformer(config, jnp.bfloat16, form)
        for prefix in settings.prefixes:
            size = prefix + settings.suffix
            template = jax.eval_shape(functools.partial(lm.init_cache, batch, size))
            makers = {
                "shared": functools.partial(shared_prefix.shared, template, prefix)
            }
            if prefix <= settings.largest_copied:
                makers["copied"] = functools.partial(lm.init_cache, batch, size)
            for held, make in makers.items():
                length = jnp.full((batch,), prefix + settings.suffix // 2, jnp.int32)
                cache = replace(make(), length=length)
                spent = seconds_a_round(lm, params, cache, 1, settings)
                row = {"form": f"{held}, {form}", "prefix": prefix}
                yield {**row, "tokens_s": batch / spent}


def training(settings: Any, shape: Any) -> dict[str, Any]:
    """Time updates of a language model: AdamW, bfloat16 products, float32 params.

    Layers are computed again in the backward pass, which is not counted as work.
    """
    config = _config(shape)
    objective = next_token.objective(config, remat=True)
    optimizer = optax.adamw(1e-4)
    step = train_step.make_step(objective, optimizer, compute_dtype="bfloat16")
    init = transformer.transformer(config).init
    params = jax.jit(init)(jax.random.key(0))
    state = train_step.first_state(params, optimizer, False)
    del params
    size = (settings.rows, settings.window + 1)
    tokens = jax.random.randint(jax.random.key(1), size, 0, config.vocab_size)
    batch = {"tokens": tokens}
    work = throughput.work(
        *(step, state, batch),
        tokens=settings.rows * settings.window,
        dtype=jnp.bfloat16,
        devices=1,
    )
    update = jax.jit(step, donate_argnums=0)
    spent = []
    for i in range(settings.updates + 1):
        begun = time.perf_counter()
        state, metrics = jax.block_until_ready(update(state, batch))
        if i:  # the first one compiles
            spent.append(time.perf_counter() - begun)
    count = sum(x.size for x in jax.tree.leaves(state.params))
    row = work.row(statistics.median(spent))
    return {"params": count, "loss": float(metrics["loss"]), **row}


def model(shape: Any) -> tuple[transformer.Config, Any]:
    """Make a model of a shape with random bfloat16 weights, leaf by leaf."""
    config = _config(shape)
    shapes = jax.eval_shape(transformer.transformer(config).init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)

    @functools.partial(jax.jit, static_argnums=1)
    def draw(key: Array, form: tuple[int, ...]) -> Array:
        return 0.02 * jax.random.normal(key, form, jnp.bfloat16)

    keys = jax.random.split(jax.random.key(2), len(leaves))
    weights = [draw(key, leaf.shape) for key, leaf in zip(keys, leaves)]
    return config, jax.tree.unflatten(structure, weights)


def _config(shape: Any) -> transformer.Config:
    return transformer.Config(
        vocab_size=shape.vocab,
        d_model=shape.d_model,
        n_layers=shape.layers,
        n_heads=shape.groups * shape.heads,
        n_kv_heads=shape.groups,
        head_dim=shape.head_dim,
        d_ff=shape.d_ff,
        max_positions=2**17,
        ropes=(transformer.rope(shape.head_dim, 500000.0),),
        tied=shape.tied,
    )


def seconds_a_round(
    lm: Any, params: Any, cache: Any, nodes: int, settings: Any
) -> float:
    """Time a round in a compiled loop, in seconds.

    Each round commits the same simulated path, then resets the length: all cost equal.
    """
    count = settings.rounds_a_program
    start = cache.length + 0  # the cache itself is donated
    path = jnp.zeros((start.shape[0], min(3, nodes - 1)), jnp.int32)
    path = path + 1 + 2 * jnp.arange(path.shape[1])  # of a tree: slots must move

    def one(params: Any, carry: tuple) -> tuple:
        cache, token = carry
        tokens = jnp.broadcast_to(token[:, None], (start.shape[0], nodes))
        room = jnp.full_like(start, nodes)
        block = base.causal_block(tokens, cache.length, room, cache.size, base.ALL)
        out, cache = lm(params, cache, block)
        cache = cache.commit(jnp.minimum(path, nodes - 1), 0 * start + path.shape[1])
        return cache.replace(length=start), out.logits[:, -1].argmax(-1).astype("int32")

    @functools.partial(jax.jit, donate_argnums=1)
    def run(params: Any, cache: Any) -> Any:
        begin = (cache, 0 * start)
        return jax.lax.fori_loop(0, count, lambda _, x: one(params, x), begin)[0]

    cache = jax.block_until_ready(run(params, cache))
    spent = []
    for _ in range(settings.repeats):
        begun = time.perf_counter()
        cache = jax.block_until_ready(run(params, cache))
        spent.append((time.perf_counter() - begun) / count)
    return statistics.median(spent)
