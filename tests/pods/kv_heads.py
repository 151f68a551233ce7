"""Texts of caches on meshes with more tensor shards than KV heads.

Run by test_meshes.py. Usage: kv_heads.py few | heads | drafted | CACHE. Prints one JSON
object: {case: {mesh: texts}}. The mesh "one" is a single device; "fault ..." are
planted faults. "few" is two KV heads in pages and in a held window on one mesh, with
the faults; "drafted" is whole decodings with EAGLE-3, of two KV heads; "heads", the
layer of draft heads, and a name of `CACHES` take 1, 2 and 8 KV heads on every mesh.
"""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import Method, Spec
from decoding.loops import state_sharding
from models import base, io, transformer
from models.cache_layouts import held, kv_cache, paged, quantized
from models.distributed import sharding
from models.heads import eagle3
from models.heads.modules import decoder_layer
from models.transformer import cached_attention, modules
from tests.models import blocks
from tests.pods import meshes

CACHES = {
    "whole": kv_cache.dense,
    "streamed": kv_cache.dense,
    "paged": paged.pages(8),
    "int8": quantized.int8(32),
    "held": kv_cache.dense,
}
MESHES = {
    "1x1x8": (1, 1, 8),
    "2x1x4": (2, 1, 4),
    "4x1x2": (4, 1, 2),
    "8x1x1": (8, 1, 1),
}
MESH = "2x1x4"  # it cuts the batch, and two KV heads further than their number
ROWS, SLOTS, DRAWN = 8, 128, 10
# Tokens, so that codes are read and slots dropped; other caches: 14.
GIVEN = {"int8": 90, "held": 58}
FEWER = {"held": 9}  # of rows 1, 4 and 7, twice as many of 2 and 5; others: one more
WINDOWS = {"held": (24,)}


def model(groups: int, cache: str) -> models.Loaded:
    cached_attention.LONG = 4096 if cache == "whole" else 64
    windows = WINDOWS.get(cache, ())
    config = dataclasses.replace(
        meshes.CONFIG, n_kv_heads=groups, n_layers=1, windows=windows
    )
    lm = transformer.transformer(config, cache=CACHES[cache])
    return models.Loaded(lm, blocks.numpy_params(lm))


def call(lm: models.Loaded):
    """A round: commits the root and, where `count` is 1, its second child."""

    @jax.jit
    def run(params, cache, block, count):
        out, cache = lm.model(params, cache, block)
        assert out.logits is not None
        last = out.logits[jnp.arange(ROWS), 2 * count]
        path = jnp.full((ROWS, 1), 2, jnp.int32)
        cache = cache.commit(path, count)
        cache = jax.tree.map(sharding.constrain, cache, cache.axes())
        return cache, last.argmax(-1)

    return run


def steps(groups: int, cache: str, mesh: str) -> list[list[int]]:
    """Ragged rows, given up to two tokens a round and then drawn one by one.

    The root's second child is committed, so that slots move; its first is a decoy.
    """
    lm, rng = model(groups, cache), np.random.default_rng(0)
    plan, given = meshes.plan_of(MESHES.get(mesh)), GIVEN.get(cache, 14)
    lm = io.placed(lm, plan)
    empty = functools.partial(lm.model.init_cache, ROWS, SLOTS)
    make = lambda: held.windowed(empty, WINDOWS.get(cache, ()), 3)
    store, run = state_sharding.made(plan, make), call(lm)
    assert isinstance(store.layers[0], held.HeldLayer) == (cache in WINDOWS)
    sizes = [given - FEWER.get(cache, -1) * (b % 3) for b in range(ROWS)]
    texts = [rng.integers(0, 1024, size).tolist() for size in sizes]
    parents = np.tile(np.array([-1, 0, 0]), (ROWS, 1))
    length = np.zeros(ROWS, int)
    for _ in range(given // 2 + DRAWN):
        count = np.array([at + 1 < len(x) for at, x in zip(length, texts)], np.int32)
        tokens = [[x[at], 7, x[at + n]] for x, at, n in zip(texts, length, count)]
        block = blocks.tree_block(tokens, parents, length, base.ALL)
        with sharding.use(plan):
            store, following = run(lm.params, store, block, count)
        length += 1 + count
        for text, at, token in zip(texts, length, np.asarray(following).tolist()):
            if at == len(text):
                text.append(token)
    assert not store.overrun
    return texts


def other_head(split):
    """Planted: a shard's keys are of another KV head than its queries."""

    def wrong(qkv):
        q, k, v = split(qkv)
        return q, k if sharding.active() is None else jnp.roll(k, 1, 2), v

    return wrong


def other_pool(attend):
    """Planted: a shard reads the pages of its neighbour along `data`."""

    def wrong(layer, *arguments, **settings):
        swap = lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
        return attend(
            dataclasses.replace(layer, k=swap(layer.k)), *arguments, **settings
        )

    return wrong


def other_shift(settle):
    """Planted: a shard drops slots by the lengths of its neighbour along `data`."""

    def wrong(layer, length):
        return settle(layer, jax.lax.ppermute(length, "data", [(0, 1), (1, 0)]))

    return wrong


FAULTS = {
    "paged": {
        "fault head": (modules, "split_heads", other_head),
        "fault pool": (paged.PagedLayer, "attend", other_pool),
    },
    "held": {"fault shift": (held.HeldLayer, "_settle", other_shift)},
}


def few(cache: str) -> dict[str, list]:
    """The texts of two KV heads on one mesh, sound and with each fault."""
    found = {mesh: steps(2, cache, mesh) for mesh in ("one", MESH)}
    for name, (place, hook, wrong) in FAULTS[cache].items():
        sound = getattr(place, hook)
        setattr(place, hook, wrong(sound))
        found[name] = steps(2, cache, MESH)
        setattr(place, hook, sound)
    return found


def head_layer(groups: int, mesh: str) -> list[list[int]]:
    """The largest of each output of a draft head's layer, in rounds like `steps`."""
    config = dataclasses.replace(meshes.CONFIG, n_kv_heads=groups)
    shape, rng = decoder_layer.geometry(config), np.random.default_rng(0)
    plan = meshes.plan_of(MESHES.get(mesh))
    weights = decoder_layer.init_layer(jax.random.key(0), shape)
    layer = sharding.placed(plan, weights)
    make = functools.partial(decoder_layer.cache, layer, ROWS, 32)
    store, texts = state_sharding.made(plan, make), []
    parents = np.tile(np.array([-1, 0, 0]), (ROWS, 1))

    @jax.jit
    def run(layer, cache, x, nodes):
        y, cache = decoder_layer.block(layer, shape, cache, x, x, nodes)
        path, ones = jnp.full((ROWS, 1), 2, jnp.int32), jnp.ones(ROWS, jnp.int32)
        return cache.commit(path, ones), y.argmax(-1)

    with sharding.use(plan):
        for i in range(5):
            x = rng.standard_normal((ROWS, 3, shape.d_model)).astype(np.float32)
            nodes = blocks.tree_block(parents, parents, np.full(ROWS, 2 * i))
            store, drafts = run(layer, store, x, nodes)
            texts.append(np.asarray(drafts))
    return np.concatenate(texts, 1).tolist()


def drafted(groups: int, mesh: str, shifted: bool = False) -> list[list[int]]:
    """Texts of trees that a head grows in half of the vocabulary, each with its calls.

    The calls tell drafts apart, which texts do not. `shifted` plants the ids of others.
    """
    config = dataclasses.replace(meshes.CONFIG, n_kv_heads=groups, vocab_size=64)
    lm = transformer.transformer(config)
    lm = models.Loaded(lm, blocks.numpy_params(lm))
    kept = np.arange(int(shifted), 64, 2)
    rows = lm.params["embedding"]["head"]
    heads = eagle3.init(jax.random.key(1), config, rows, np.arange(0, 64, 2))
    heads["kept"] = jnp.asarray(kept, jnp.int32)
    tree = Spec("topologies/eagle2", nodes=8, depth=2, top_k=4)
    out = decoding.generate(
        io.placed(lm, meshes.plan_of(MESHES.get(mesh))),
        [[token % 64 for token in prompt] for prompt in meshes.prompts()],
        Method(Spec("drafters/eagle3"), topology=tree),
        max_new_tokens=32,
        drafts={"heads": heads},
        width="paper",
    )
    calls = np.asarray(out.stats.target_calls).tolist()
    return [[*text, n] for text, n in zip(out.tokens, calls, strict=True)]


def main(cases: str) -> dict[str, dict]:
    if cases == "few":
        return {f"2, {cache}": few(cache) for cache in FAULTS}
    if cases == "drafted":
        found = {n: drafted(2, n) for n in ("one", "1x1x8", MESH)}
        return {"2, drafted": {**found, "fault ids": drafted(2, MESH, shifted=True)}}
    run = head_layer if cases == "heads" else functools.partial(steps, cache=cases)
    return {
        f"{groups}, {cases}": {n: run(groups, mesh=n) for n in ("one", *MESHES)}
        for groups in (1, 2, 8)
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    held.EVERY = held.STEP = 16
    print(json.dumps(main(sys.argv[1])))
