"""Texts of diffusion models on meshes of 8 virtual devices; run by test_meshes.py.

Usage: written_canvases.py CACHE | freedave. Prints one JSON object: {case: {mesh:
texts}}. The mesh "one" is a single device; "freedave" verifies four states a forward
under `dual`. A text is its tokens, and the step that committed each of them. The mask's
row makes the vocabulary odd, so that no mesh divides it.
"""

import dataclasses
import json
import sys

import jax

import decoding
import models
from decoding import Method, Spec
from models import io, transformer
from models.distributed import sharding
from tests.pods import masked, meshes

NEW = 18
MESHES = {"1x8x1": (1, 8, 1), "2x2x2": (2, 2, 2)}
CONFIG = dataclasses.replace(masked.CONFIG, block_size=8)
TEMPERATURES = (0.0, 0.8)


def method(case: str) -> Method:
    """Two positions a forward, in blocks of 8."""
    parts = [Spec("diffusion/blocks", size=8), Spec("diffusion/llada", steps=4)]
    if case == "freedave":
        return Method(
            schedule=(*parts, Spec("diffusion/freedave", branches=4)),
            policy=Spec("caches/dual"),
        )
    return Method(schedule=parts, policy=Spec(f"caches/{case}"))


def texts(lm: models.Loaded, case: str, temperature: float) -> list[list[list[int]]]:
    out = decoding.generate(
        lm,
        meshes.prompts(),
        method(case),
        max_new_tokens=NEW,
        temperature=temperature,
        seed=3,
    )
    return [[*map(list, row)] for row in zip(out.tokens, out.order, strict=True)]


def main(case: str) -> dict[str, dict[str, list]]:
    model = transformer.transformer(CONFIG)
    lm = models.Loaded(model, jax.jit(model.init)(jax.random.key(0)))
    placed = {
        name: io.placed(lm, meshes.plan_of(shape)) for name, shape in MESHES.items()
    }
    wrong = meshes.neighbours(lm, meshes.plan_of(MESHES["2x2x2"]))
    every = {"one": lm, **placed, "fault neighbours": wrong}
    return {
        f"t{heat:g}": {name: texts(there, case, heat) for name, there in every.items()}
        for heat in TEMPERATURES
    }


if __name__ == "__main__":
    sharding.ORDERED = ("cpu",)  # weights lie in memory as a TPU's do
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    print(json.dumps(main(sys.argv[1])))
