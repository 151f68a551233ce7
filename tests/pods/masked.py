"""Losses of masked diffusion on meshes of 8 virtual devices; run by test_meshes.py.

Usage: masked.py. Prints one JSON object: {mesh: losses}. Half of the rows are
block-causal; the mask's row makes the vocabulary odd, so that no mesh divides it.
"""

import dataclasses
import json

import jax
import numpy as np

from models import transformer
from models.distributed import sharding
from tests.pods import meshes
from training.loop import optimizers, train_step
from training.objectives.language_models import masked_diffusion

CONFIG = dataclasses.replace(
    meshes.CONFIG,
    vocab_size=meshes.CONFIG.vocab_size + 1,
    mask_token=meshes.CONFIG.vocab_size,
    visibility=("bidirectional", "block_causal"),
    alignment="shifted",
    block_size=4,
)


def losses(shape: tuple[int, ...] | None, renumbered: bool = False) -> list[float]:
    """The loss of 4 steps; `renumbered` plants rows of other numbers."""
    plan = meshes.plan_of(shape, "train")
    schedule = optimizers.warmup_stable_decay(0.01, 4, 1, 1)
    optimizer = optimizers.adamw(schedule, weight_decay=0.1)
    params = jax.jit(transformer.transformer(CONFIG).init)(jax.random.key(0))
    state = train_step.first_state(params, optimizer, False, plan)
    objective = masked_diffusion.objective(CONFIG, bidirectional=0.5, blocks=(2, 8))
    step = jax.jit(train_step.make_step(objective, optimizer, 0, 1.0))
    rng, found = np.random.default_rng(1), []
    for i in range(4):
        tokens = rng.integers(0, CONFIG.mask_token, (meshes.ROWS, 33))
        row = np.arange(meshes.ROWS, dtype=np.int32) + meshes.ROWS * i
        batch = {"tokens": tokens.astype(np.int32), "row": row + renumbered}
        with sharding.use(plan):
            batch = batch if plan is None else plan.batch(batch)
            state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return found


if __name__ == "__main__":
    sharding.ORDERED = ("cpu",)
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    curves = {"one": losses(None)}
    for name in meshes.FEW:
        curves[name] = losses(meshes.MESHES[name])
    curves["fault numbers"] = losses(None, renumbered=True)
    print(json.dumps(curves))
