"""Medusa-2 for `tiny`: heads and low-rank changes to the target, trained together.

Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.2.2. The changed model is
another model: its text is compared with its own plain decoding. In the first fifth of
the training (at scale the first half) only the heads are trained. The target's changes
train at a quarter of the heads' rate.

Command:  python -m experiments.run --config=configs/heads/medusa2.py
              --workdir=runs/medusa2
Hardware: 2 CPU cores.
At scale: medusa2.py:llama3_8b, 8 rows of 4,096 tokens, rates 2e-3 and 5e-4, 2 epochs
          of each stage.
Params:   Medusa's, and r (I + O) of every weight of I inputs and O outputs.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=8, window=4095, rate=2e-3, warmup=40, clip=1.0, epochs=4
    )
    c.name = "medusa2"
    c.head = "medusa2"
    c.init.update(heads=5, rank=32)
    rows = c.data.get_ref("tokens") // c.data.get_ref("window")
    c.objective.warm = rows // (5 if target == "tiny" else 2)
    c.objective.dropout = 0.05  # of the changes' inputs
    c.train.factors = {"lora": 0.25}  # of the rate
    if target != "tiny":
        c.objective.remat = True  # gradients pass through the target
    c.method.drafter = "drafters/medusa"
    c.method.topology = {"name": "topologies/static"}
    return c
