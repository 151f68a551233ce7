"""Medusa heads for `tiny`.

Cai et al., *Medusa*, 2024, arXiv 2401.10774: five heads of one residual block, each
with output rows of its own that begin as the target's.

Command:  python -m experiments.run --config=configs/heads/medusa.py
              --workdir=runs/medusa
Hardware: 2 CPU cores.
At scale: medusa.py:llama3_8b, 128 rows of 2,048 tokens, rate 1e-3, 2 epochs (the
          authors': 1 to 2), of which a tenth is warm-up.
Params:   K (D^2 + D + V D) of K heads: nearly all of them output rows.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=128, rate=1e-3, warmup=106, clip=1.0, epochs=2
    )
    c.name = "medusa"
    c.head = "medusa"
    c.init.heads = 5
    c.method.drafter = "drafters/medusa"
    c.method.topology = {"name": "topologies/static"}
    if target == "tiny":
        c.train.rate = 0.002
    return c
