"""The stage `language_model`: train a model on text, new or from another's weights."""

from typing import Any

import jax

from experiments.preflight import programs
from experiments.run_folder import RunFolder
from experiments.stage import Preflight, Stage
from models import transformer
from models.distributed import sharding
from training.runs import language_model_run


def run(config: Any, store: RunFolder) -> None:
    """Train and export the model, with its figures in the same folder."""
    language_model_run.run(config, str(store.path))


def programs_of(config: Any, mesh: Any, dtype: Any) -> list[programs.Program]:
    """Return the training program, at the largest batch of its stages."""
    plan = sharding.on(mesh, "train", config.get("rules", ""))
    assert plan is not None
    shape = language_model_run.model_config(config)
    params = jax.eval_shape(transformer.transformer(shape).init, jax.random.key(0))
    stages = config.data.stages
    steps = sum(stage[0] for stage in stages)
    _, rows, window = max(stages, key=lambda stage: stage[1] * stage[2])
    objective = language_model_run.objective(config, shape)
    optimizer = language_model_run.optimizer(config, steps)
    names = ["tokens"]
    if config.data.get("facts", ""):
        names += ["segments", "loss_mask"]
    batch: dict[str, tuple[int, ...]] = dict.fromkeys(names, (rows, window + 1))
    if config.get("diffusion") is not None:
        batch["row"] = (rows,)
    arguments = (objective, optimizer, params, batch)
    return [programs.training("train", config, plan, *arguments)]


STAGE = Stage(
    run,
    "A language model trained on text",
    preflight=Preflight(programs_of, language_model_run.model_config, "train"),
)
