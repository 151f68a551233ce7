"""Acceptance against training tokens and size of a draft model, and batch size.

The question of Scylla (*Scaling Laws for Speculative Decoding*, 2025, arXiv
2505.07858): is acceptance linear in the logarithm of the draft's training tokens and of
its parameters, and how does speed depend on the decode batch? Draft models of every
size are trained from random weights on every number of tokens. Each has a whole
schedule of its own; all have one learning rate. They draft chains for `tiny`, and laws
are fitted with intervals. (The paper's drafts read the target's states; these are whole
models.)

Command:  python -m experiments.run --config=configs/studies/scaling_laws.py
              --workdir=runs/scaling_laws
Hardware: 2 CPU cores. The twelve drafts of the first three sizes took 31 minutes on one
core. Every draft and every row is stored: the same command resumes after a kill.
`'--config.seeds=(0,1,2)'` trains each draft three times, in three times as long.

Expected, from the paper's claim for models of 7B and more: slopes above 0 in both axes.
With coupled drafts a row's text does not depend on its batch. So tokens a call do not
change with the batch here, and only speed has a slope.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `scaling_laws`."""
    c = ml_collections.ConfigDict()
    c.stage = "scaling_laws"
    c.name = "scaling_laws"  # of the run, in reports
    c.seed = 0  # of the texts
    c.model = "tiny"
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    c.rules = ""

    c.tokens = (125_000, 250_000, 500_000, 1_000_000)  # of a draft's training
    c.sizes = ((32, 1), (64, 2), (128, 3), (192, 4))  # (width, layers) of the drafts
    c.head_dim = 32  # of the drafts
    c.seeds = (0,)  # of the trainings
    c.batches = (1, 2, 4, 8)  # of the texts, with the reference draft
    c.reference = (128, 3)  # its size; it has the most tokens

    c.data = training.data(tokens=0)
    c.train = training.train(rate=0.003, rows_at_once=8)
    c.train.pretraining_rate = 0.003  # peak learning rate of the drafts

    # The drafter that decodes with the drafts, and its arguments.
    c.drafter = ml_collections.ConfigDict({"name": "drafters/model"})
    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.length = 5  # drafts a round

    c.update(training.decoding())
    c.prompts = 32
    c.max_new_tokens = 64
    c.batch = 8
    c.repeats = 5  # of the timings by batch
    return c
