"""Texts of families of targets on meshes of 8 virtual devices; run by test_meshes.py.

Usage: families.py FAMILY. Prints {"decode": {mesh: texts}, "train": {mesh: losses}},
the latter of families in `TRAINED`. The mesh "one" is a
single device; "fault ..." are planted faults. Trees of prompt lookup are verified, at
T = 0.8, over a cache that is read piece by piece. What it imports starts JAX, so that a
flag gives the number of devices.
"""

import dataclasses
import functools
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import Method, Spec
from models import io, transformer
from models.distributed import device_mesh, sharding
from models.transformer import cached_attention, mxfp4
from tests.conformance import test_families as families
from tests.pods import meshes

MESHES = {
    "2x2x2": ((2, 2, 2), ""),
    "1x1x8": ((1, 1, 8), ""),
    "2x1x4, whole experts": ((2, 1, 4), "expert=tensor"),
}
CODED = "gpt_oss in codes"
TRAINED = ("mixtral", "deepseek_v2")
BALANCE = 0.1
ROWS, NEW = 8, 12


def loaded(name: str) -> models.Loaded:
    lm = families.target(name.split()[0])
    if name == CODED:
        lm = coded(lm)
    return models.Loaded(lm.model, lm.params)


def coded(lm):
    """The same model with experts of random codes."""
    shapes = tuple(
        dataclasses.replace(
            shape, experts=dataclasses.replace(shape.experts, stored=mxfp4.NAME)
        )
        for shape in lm.config.shapes
    )
    config = dataclasses.replace(lm.config, shapes=shapes)
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(0))
    rng = np.random.default_rng(0)

    def drawn(path: tuple, x: jax.Array) -> jax.Array:
        if x.dtype != jnp.uint8:
            return x
        name = path[-1].key
        low, high = (122, 125) if name.endswith("scales") else (0, 256)
        return jnp.asarray(rng.integers(low, high, x.shape), jnp.uint8)

    params = jax.tree_util.tree_map_with_path(drawn, params)
    return types.SimpleNamespace(model=model, params=params, config=config)


def texts(lm: models.Loaded) -> list[list[int]]:
    rng = np.random.default_rng(0)
    vocab = lm.config.vocab_size
    prompts = [rng.integers(0, vocab, 2 + 3 * i).tolist() for i in range(ROWS)]
    lookup = Method(Spec("drafters/prompt_lookup", k=3))
    heat = {"temperature": 0.8, "max_new_tokens": NEW}
    return decoding.generate(lm, prompts, lookup, width="paper", **heat).tokens


def placed(lm: models.Loaded, shape: tuple[int, ...], rules: str) -> models.Loaded:
    sizes = dict(zip(device_mesh.MESH_AXES, shape, strict=True))
    mesh = device_mesh.mesh_of(sizes)
    return io.placed(lm, sharding.on(mesh, "decode", rules, lm.config))


def swapped(lm: models.Loaded) -> models.Loaded:
    """Planted: devices hold their neighbours' part of what leaves attention."""
    layer = lm.params["layer_1"]
    out = layer["attention"]["out"]
    attention = {**layer["attention"], "out": jnp.roll(out, len(out) // 2, 0)}
    params = {**lm.params, "layer_1": {**layer, "attention": attention}}
    return models.Loaded(lm.model, params)


def main(name: str) -> None:
    lm = loaded(name)
    cached_attention.LONG = 64
    found = {"one": texts(lm)}
    for mesh, (shape, rules) in MESHES.items():
        found[mesh] = texts(placed(lm, shape, rules))
    fault = placed(swapped(lm), *MESHES["2x2x2"])
    found["fault of neighbours"] = texts(fault)
    print(json.dumps({"decode": found, "train": curves(name, lm.config)}))


def curves(name: str, config: transformer.Config) -> dict[str, list[float]]:
    """Losses on meshes, with the balance of experts, and of rows read twice."""
    if name not in TRAINED:
        return {}
    of = functools.partial(meshes.losses, config=config, balance=BALANCE)
    shapes = {"one": None, **{mesh: shape for mesh, (shape, _) in MESHES.items()}}
    found = {mesh: of(shape) for mesh, shape in shapes.items()}
    return {**found, "fault rows": of((2, 2, 2), same_rows=True)}


if __name__ == "__main__":
    main(sys.argv[1])
