"""Exit predictors for `tiny`, and the effect of early exits on its text (SpecEE).

Xu et al., *SpecEE: Accelerating Large Language Model Inference with Speculative Early
Exiting*, 2025, arXiv 2504.08850. An EAGLE layer is trained (or `--config.heads` names
one), then a predictor for every layer but the last. The text is decoded with the
two-level schedule and with predictors at every layer, at several thresholds. Two rules
without training stand beside them: exits after a fixed layer, and at a confident law
of the candidates.

Command:  python -m experiments.run --config=configs/predictors/specee.py
              --workdir=runs/specee
Hardware: 2 CPU cores.
At scale: no recipe. The authors' main target is Llama 2 7B. Labels take a product with
          the whole head for every layer but the last: 31 of an 8B target, whose cost is
          twice the target's own forward pass.
"""

import ml_collections

from configs.base import training
from configs.heads import eagle


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `exit_predictors`."""
    c = ml_collections.ConfigDict()
    c.stage = "exit_predictors"
    c.name = "specee"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.heads = ""  # folder of a trained EAGLE layer; empty: train `eagle`
    c.eagle = eagle.get_config()  # the recipe of the EAGLE layer
    c.static = 2  # layers of the schedule's first level

    c.objective = ml_collections.ConfigDict()
    c.objective.candidates = 4  # tokens that a predictor looks at
    c.objective.width = 512  # of a predictor's hidden layer
    c.objective.asked = 0.5  # chance that a layer has a prediction, in training
    c.objective.part = 512  # positions whose logits exist at a time; 0: all

    c.data = training.data(tokens=200_000)

    c.train = training.train(rows_at_once=2)

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.temperature = 0.0  # of the decoded texts
    c.evaluate.tokens = 16_384  # held-out tokens to judge predictors on
    c.evaluate.window = 256  # tokens of a row of them
    c.evaluate.prompts = 24  # held-out prompts decoded
    c.evaluate.prompt_tokens = 64  # of each
    c.evaluate.new_tokens = 64  # of each text
    c.evaluate.thresholds = (0.3, 0.5, 0.7, 0.9)  # of the predictors, one row each
    c.evaluate.confidences = (0.5, 0.7, 0.9, 0.97, 0.99)  # of the untrained rule
    c.export = ""  # a folder for the predictors; empty: workdir/export
    return c
