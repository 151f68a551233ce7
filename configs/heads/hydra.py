"""Hydra heads for `tiny`.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 3: four heads of one block.

Command:  python -m experiments.run --config=configs/heads/hydra.py
              --workdir=runs/hydra
Hardware: 2 CPU cores.
At scale: hydra.py:llama3_8b, 32 rows of 2,048 tokens, rate 5e-4, 10 epochs.
Params:   sum_i 2 ((i + 2) D^2 + D) + V D + V over four heads.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=32, warmup=100, weight_decay=0.1, clip=1.0, epochs=10
    )
    c.name = "hydra"
    c.head = "hydra"
    c.init.heads = 4
    c.method.drafter = "drafters/hydra"
    c.method.topology = {"name": "topologies/static"}
    if target == "tiny":
        c.train.rate = 0.002
    return c
