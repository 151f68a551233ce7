"""A head that predicts acceptance of drafts, and ends draft chains by it.

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2025, arXiv 2405.19715. The head is trained on the target's own text. Its
chains are compared with every fixed length, and with chains that end at low draft
confidence. The measure is tokens / (target calls + c draft calls).

Command:  python -m experiments.run --config=configs/predictors/specdec_pp.py
              --workdir=runs/specdec_pp
Hardware: 2 CPU cores.
At scale: no recipe. The authors': Llama-2-chat 7B drafts for 70B on Alpaca, 3 epochs of
          batch 32, rate 5e-5, 3 % warm-up, 2 to 20 drafts.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `acceptance_head`."""
    c = ml_collections.ConfigDict()
    c.stage = "acceptance_head"
    c.name = "specdec_pp"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"  # the draft model
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    c.rules = ""

    c.objective = ml_collections.ConfigDict()
    c.objective.mix = 0.15  # share of target tokens in the head's input text
    c.objective.reject = 6.0  # weight of a rejection
    c.objective.blocks = 3  # residual blocks of the head
    c.objective.temperature = 1.0  # of the laws whose acceptance is learnt
    c.objective.part = 0  # positions whose logits exist at a time; 0: all

    c.data = training.data(tokens=300_000)

    c.distill = training.distill(prompts=768, held=64, temperatures=(1.0,))

    c.train = training.train()

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.prompts = 32  # held-out prompts decoded
    c.evaluate.prompt_tokens = 64  # of each
    c.evaluate.new_tokens = 96  # of each text
    # Fixed lengths of a draft to compare with.
    c.evaluate.lengths = (1, 2, 3, 4, 5, 6, 8, 10)
    # Of the head, one row each.
    c.evaluate.thresholds = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
    # Thresholds of the untrained rule, one row each.
    c.evaluate.confidences = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    c.evaluate.most = 12  # most drafts a round
    c.evaluate.least = 1  # fewest drafts a round
    # Of a draft call, in target calls.
    c.evaluate.costs = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
    c.export = ""  # a folder for the finished head; empty: workdir/export
    return c
