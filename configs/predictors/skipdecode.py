"""`tiny` trained under schedules that leave more of its layers out by place.

Del Corro et al., *SkipDecode: Autoregressive Skip Decoding with Batching and Caching
for Efficient LLM Inference*, 2023, arXiv 2307.02628. For each budget (max, min) of
layers low-rank changes of the target are trained under the schedule. Beside each, the
same changes are trained under one set of as many layers as the schedule's mean, which
every token of a text takes: the best such set, found on training text.
configs/studies/skipdecode.py measures what comes of it.

The steps are few, for two shared cores: 32 of 512 tokens, half of which have a loss.

Command:  python -m experiments.run --config=configs/predictors/skipdecode.py
              --workdir=runs/skipdecode
Hardware: 2 CPU cores.
At scale: no recipe. The paper's targets are OPT-1.3B and OPT-6.7B, all of whose weights
          it trains. A step costs the target's forward and backward pass.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `scheduled_layers`."""
    c = ml_collections.ConfigDict()
    c.stage = "scheduled_layers"
    c.name = "skipdecode"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.budgets = ((8, 4), (8, 2))  # (max, min) layers, a run each
    c.warm = 1  # first layers that are never skipped
    c.tokens = 64  # of a text, over which the layers shrink

    c.objective = ml_collections.ConfigDict()
    c.objective.part = 512  # positions whose logits exist at a time; 0: all
    c.objective.bias = 2.0  # log-odds of a router; none is trained here
    c.objective.threshold = 0.5  # likewise: mean vote from which on a layer is kept

    c.data = training.data(tokens=16_384)
    c.data.batch = 4
    c.data.window = 128

    c.train = training.train(rate=0.001, rows_at_once=4, save_every=16)

    c.adapt = ml_collections.ConfigDict()
    c.adapt.rank = 8  # of the target's changes
    c.adapt.prompt = 64  # tokens of a row that take `max` layers and have no loss
    c.adapt.rate = 0.001  # peak learning rate; the rest is `train`'s

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.tokens = 2048  # held-out tokens that are graded
    c.evaluate.searched = 1024  # training tokens on which fixed sets are chosen
    c.evaluate.window = 128  # tokens of a row of either
    c.evaluate.prompt = 64  # of these, tokens that take all layers
    c.export = ""  # a folder for the changes; empty: workdir/export
    return c
