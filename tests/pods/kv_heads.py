"""What caches give on meshes with more tensor shards than KV heads.

Run by test_meshes.py. Usage: kv_heads.py all | most. Prints one JSON object: {case:
{mesh: texts}}. A case is "KV heads, cache, method"; the mesh "one" is a single device;
"fault ..." are planted faults. "most" takes the cases of `FEW`.
"""

import dataclasses
import itertools
import json
import sys

import jax
import jax.numpy as jnp

import models
from models import io, transformer
from models.cache_layouts import kv_cache, paged, quantized
from models.distributed import sharding
from models.heads import hydra
from models.transformer import cached_attention, modules
from tests.pods import meshes

PAGE = 16
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
FAULTY = ("2", "paged", "plain")
FEW = {FAULTY: ("2x1x4",), ("1", "whole", "tree"): ("1x1x8",)}
EVERY = {
    case: tuple(MESHES)
    for case in itertools.product(("1", "2", "8"), CACHES, ("plain", "tree"))
}


def model(groups: int, cache: str) -> models.Loaded:
    config = dataclasses.replace(meshes.CONFIG, n_kv_heads=groups)
    lm = transformer.transformer(config, cache=CACHES[cache])
    return models.Loaded(lm, jax.jit(lm.init)(jax.random.key(0)))


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


def faults(case: tuple[str, str, str], mesh: str) -> dict[str, list]:
    """The texts of a paged case with each fault, on a mesh that cuts two KV heads."""
    found = {}
    for name, (place, hook, wrong) in FAULTS.items():
        sound = getattr(place, hook)
        setattr(place, hook, wrong(sound))
        found[name] = on_meshes(case, (mesh,))[mesh]
        setattr(place, hook, sound)
    return found


def main(cases: dict[tuple[str, str, str], tuple[str, ...]]) -> dict[str, dict]:
    found = {}
    for case, names in cases.items():
        found[", ".join(case)] = on_meshes(case, ("one", *names))
    found[", ".join(FAULTY)] |= faults(FAULTY, "2x1x4")
    return found


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    cases = EVERY if sys.argv[1] == "all" else FEW
    print(json.dumps(main(cases)))
