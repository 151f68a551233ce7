"""Texts of layers that hold their windows, on a mesh of 8 virtual devices.

Run by test_meshes.py. Prints one JSON object: {"texts": {run: texts}, "held": {run:
which layers hold windows}, "collectives": {run: the loop's number}}. The run "one" is a
single device, "whole" a mesh whose layers keep all slots; "fault ..." is a planted one.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import compose
from decoding.loops import engines, initial_state
from kernels import hlo
from models import io, transformer
from models.cache_layouts import held
from models.transformer import cached_attention
from tests.models import blocks
from tests.pods import kv_heads, meshes

MESH = (2, 2, 2)
ROWS, NEW, SIZE, CHUNK = 8, 60, 192, 16
CONFIG = dataclasses.replace(
    meshes.CONFIG, n_layers=2, windows=(0, 24), n_heads=4, n_kv_heads=2
)
WINDOWED = held.windowed


def prompts() -> list[list[int]]:
    """Ragged: of 1 to 92 tokens."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, CONFIG.vocab_size, 1 + 13 * i).tolist() for i in range(ROWS)
    ]


def whole(make: Callable, windows: Any, width: int) -> Any:
    return make()


def run(
    lm: models.Loaded, shape: Any, long: int, windowed: Callable = WINDOWED
) -> dict[str, Any]:
    """Decode on a mesh; `long`: slots from which a cache is read piece by piece."""
    cached_attention.LONG = long
    initial_state.windowed = windowed
    there = io.placed(lm, meshes.plan_of(shape))
    with engines.apart():
        parts = compose.compose(decoding.Method(), there)
        program = dataclasses.replace(parts.program, chunk=CHUNK)
        parts = dataclasses.replace(parts, program=program)
        engine, params = engines.engine(parts), compose.params(there)
        texts = prompts()
        limits = [len(text) + NEW for text in texts]
        keys = engines.request_keys(0, ROWS, 1)
        state = engine.start(params, parts, texts, limits, keys, SIZE)
        state = engine.advance(params, state)
        layers = state.caches["target"].layers
        rows = zip(np.asarray(state.tokens), limits, strict=True)
        return {
            "texts": [row[:end].tolist() for row, end in rows],
            "held": [isinstance(layer, held.HeldLayer) for layer in layers],
            "collectives": len(hlo.collectives(engine.text("advance"))),
        }


def main() -> dict[str, dict[str, Any]]:
    model = transformer.transformer(CONFIG)
    lm = models.Loaded(model, blocks.numpy_params(model))
    found = {
        "one": run(lm, None, 64, whole),
        "whole": run(lm, MESH, 64, whole),
        "pieces": run(lm, MESH, 64),
        "masks": run(lm, MESH, 4096),
    }
    place: Any = held.HeldLayer
    place._settle = kv_heads.other_shift(held.HeldLayer._settle)
    found["fault shift"] = run(lm, MESH, 64)
    return {key: {name: x[key] for name, x in found.items()} for key in found["one"]}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    held.EVERY = held.STEP = 16
    print(json.dumps(main()))
