"""Routers of `tiny`'s layers, and the text that takes the layers they keep (FiRST).

Jain, Sharma, Mukherjee, Pal, *FiRST: Finetuning Router-Selective Transformers for
Input-Adaptive Latency Reduction*, 2025, arXiv 2410.12513. At each price of a layer
routers are trained on the frozen target, then low-rank changes of the target under
them. Held-out text is graded as decoding runs it, beside random layers and the best
fixed set of as many. configs/studies/first.py measures what comes of it.

The steps are few, for two shared cores: 64 of 512 tokens for the routers, 32 for the
target.

Command:  python -m experiments.run --config=configs/predictors/first.py
              --workdir=runs/first
Hardware: 2 CPU cores.
At scale: no recipe. The paper's targets have 3B to 8B weights. A step of either stage
          costs the target's forward and backward pass.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `layer_routers`."""
    c = ml_collections.ConfigDict()
    c.stage = "layer_routers"
    c.name = "first"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.sparsities = (0.5, 1.0, 2.0, 4.0)  # prices of all layers, in nats, one run each

    c.objective = ml_collections.ConfigDict()
    c.objective.bias = 2.0  # log-odds of an untrained router
    c.objective.threshold = 0.5  # mean vote from which on a layer is kept
    c.objective.part = 512  # positions whose logits exist at a time; 0: all

    c.data = training.data(tokens=32_768)  # of the routers
    c.data.batch = 4
    c.data.window = 128

    c.train = training.train(rate=0.01, rows_at_once=4, save_every=16)

    c.adapt = ml_collections.ConfigDict()
    c.adapt.tokens = 16_384  # to train the target on
    c.adapt.rank = 8  # of the target's changes; 0: without the second stage
    c.adapt.prompt = 32  # tokens of a row that choose its layers
    c.adapt.rate = 0.001  # peak learning rate; the rest is `train`'s

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.tokens = 2048  # held-out tokens that are graded
    c.evaluate.searched = 1024  # training tokens on which fixed sets are chosen
    c.evaluate.window = 128  # tokens of a row of either
    c.evaluate.prompt = 32  # of these, tokens that choose the layers
    c.evaluate.draws = 3  # random sets of layers
    c.export = ""  # a folder for the routers; empty: workdir/export
    return c
