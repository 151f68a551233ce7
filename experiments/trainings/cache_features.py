"""The stage `cache_features`: write a teacher's features, without any training.

`draft_heads` with `teacher=offline` reads them from the same folder.
"""

import functools
from typing import Any

import models
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.trainings import draft_heads
from training.runs import draft_head_run
from training.teacher import sources


def run(config: Any, store: RunFolder, lm: Any = None) -> None:
    """Write missing shards; check stored ones, and write damaged ones again."""
    if lm is None:
        lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
    say = functools.partial(console.terminal().print, markup=False, soft_wrap=True)
    for seed, name, recipe in draft_heads.plan(config):
        training_config, folder = draft_heads.one_training(
            config, store, name, recipe, seed
        )
        sources.build(draft_head_run.Training(training_config, folder, lm).lesson(say))


STAGE = Stage(run, "A teacher's features by {}", draft_heads.STAGE.resumable_fields)
