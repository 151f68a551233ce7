"""The stage `language_model`: a model trained on text from nothing."""

from typing import Any

from experiments.run_folder import RunFolder
from experiments.stage import Stage
from training.runs import language_model_run


def run(config: Any, store: RunFolder) -> None:
    """Train and write the model; its figures stand beside it."""
    language_model_run.run(config, str(store.path))


STAGE = Stage(run, "A language model trained on text")
