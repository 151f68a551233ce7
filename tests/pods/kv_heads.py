"""What caches give on meshes with more tensor shards than KV heads.

Run by test_meshes.py. Usage: kv_heads.py few | GROUPS CACHE. Prints one JSON object:
{case: {mesh: texts}}. A case is "KV heads, cache, method"; the mesh "one" is a single
device; "fault ..." are planted faults. "few" takes single steps of two KV heads in
pages, with no loop around them, because that compiles in a tenth of the time.
"""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding.loops import state_sharding
from models import base, io, transformer
from models.cache_layouts import kv_cache, paged, quantized
from models.distributed import sharding
from models.heads import hydra
from models.transformer import cached_attention, modules
from tests.models import blocks
from tests.pods import meshes

PAGE = 8
CACHES = {
    "whole": kv_cache.dense,
    "streamed": kv_cache.dense,
    "paged": paged.pages(PAGE),
    "int8": quantized.int8(),
}
MESHES = {
    "1x1x8": (1, 1, 8),
    "2x1x4": (2, 1, 4),
    "4x1x2": (4, 1, 2),
    "8x1x1": (8, 1, 1),
}
MESH = "2x1x4"  # it cuts the batch, and two KV heads further than their number


def model(groups: int, cache: str) -> models.Loaded:
    config = dataclasses.replace(meshes.CONFIG, n_kv_heads=groups, n_layers=1)
    lm = transformer.transformer(config, cache=CACHES[cache])
    return models.Loaded(lm, blocks.numpy_params(lm))


def heads_of(lm: models.Loaded):
    rows = lm.params["embedding"]["head"]
    make = jax.jit(lambda key: hydra.init(key, lm.config, rows, 3, prefix=True))
    return make(jax.random.key(1))


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


FAULTS = {
    "fault head": (modules, "split_heads", other_head),
    "fault pool": (paged.PagedLayer, "attend", other_pool),
}


def on_meshes(case: tuple[str, str, str], names: tuple[str, ...]) -> dict[str, list]:
    """The texts of a case on the meshes of these names; "one" is no mesh."""
    groups, cache, method = case
    cached_attention.LONG = 4096 if cache == "whole" else 64
    lm = model(int(groups), cache)
    drafts = heads_of(lm)
    found = {}
    for name in names:
        there = io.placed(lm, meshes.plan_of(MESHES.get(name)))
        found[name] = meshes.texts(there, method, drafts)
    return found


def steps(name: str) -> list[list[int]]:
    """Texts of eight rows from calls of one node; four tokens are given."""
    lm = model(2, "paged")
    plan = meshes.plan_of(MESHES.get(name))
    lm, made = io.placed(lm, plan), functools.partial(lm.model.init_cache, 8, 64)
    cache, none = state_sharding.made(plan, made), jnp.zeros((8, 0), jnp.int32)

    @jax.jit
    def step(params, cache, tokens):
        ones = jnp.ones(8, jnp.int32)
        block = base.causal_block(tokens, cache.length, ones, cache.size, base.ALL)
        out, cache = lm.model(params, cache, block)
        return cache.commit(none, ones - 1, linear=True), out.logits[:, 0].argmax(-1)

    texts = np.random.default_rng(0).integers(0, 1024, (8, 4))
    with sharding.use(plan):
        for i in range(2 * PAGE + 4):
            cache, following = step(lm.params, cache, jnp.asarray(texts[:, i : i + 1]))
            if i >= 3:
                texts = np.concatenate([texts, np.asarray(following)[:, None]], 1)
    assert not cache.overrun
    return texts.tolist()


def few() -> dict[str, list]:
    """The texts of `steps` with and without a mesh, and with each fault."""
    found = {name: steps(name) for name in ("one", MESH)}
    for name, (place, hook, wrong) in FAULTS.items():
        sound = getattr(place, hook)
        setattr(place, hook, wrong(sound))
        found[name] = steps(MESH)
        setattr(place, hook, sound)
    return found


def main(arguments: list[str]) -> dict[str, dict]:
    if arguments == ["few"]:
        return {"2, paged, steps": few()}
    groups, cache = arguments
    cases = [(groups, cache, method) for method in meshes.CASES]
    return {", ".join(case): on_meshes(case, ("one", *MESHES)) for case in cases}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    print(json.dumps(main(sys.argv[1:])))
