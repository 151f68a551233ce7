"""A head that predicts acceptance of drafts, and ends draft chains by it.

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2024, arXiv 2405.19715. The head is trained on the target's own text. Its
chains are compared with every fixed length, and with chains that end at low draft
confidence. The measure is tokens / (target calls + c draft calls).

Command:  python -m experiments.run --config=configs/predictors/specdec_pp.py
              --workdir=runs/specdec_pp
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `acceptance_head`."""
    c = ml_collections.ConfigDict()
    c.stage = "acceptance_head"
    c.name = "specdec_pp"
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    c.rules = ""

    c.objective = ml_collections.ConfigDict()
    c.objective.mix = 0.15  # share of target tokens in the head's input text
    c.objective.reject = 6.0  # weight of a rejection
    c.objective.blocks = 3
    c.objective.temperature = 1.0
    c.objective.part = 0

    c.data = training.data(tokens=300_000)

    c.distill = training.distill(prompts=768, held=64, temperatures=(1.0,))

    c.train = training.train()

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.prompts = 32
    c.evaluate.prompt_tokens = 64
    c.evaluate.new_tokens = 96
    c.evaluate.lengths = (1, 2, 3, 4, 5, 6, 8, 10)
    c.evaluate.thresholds = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    c.evaluate.confidences = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    c.evaluate.most = 12
    c.evaluate.least = 1
    c.evaluate.costs = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
    c.export = ""  # a folder for the finished head; empty: workdir/export
    return c
