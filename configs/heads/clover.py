"""Clover-2's heads for `tiny`: two augmenting layers and a recurrent cell.

Xiao et al., *Clover-2*, 2024, arXiv 2408.00264; five steps, the layers begin as the
target's last one, at scale as its first (the authors' configs).

Command:  python -m experiments.run --config=configs/heads/clover.py
              --workdir=runs/clover
Hardware: 2 CPU cores.
At scale: clover.py:llama3_8b, 16 rows of 2,048 tokens (4 on each of 4 GPUs),
          rate 1e-3, 20 epochs.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target,
        rate=1e-3,
        warmup=8000,
        weight_decay=0.01,
        clip=0.0,
        clip_value=0.5,
        b2=0.95,
    )
    c.name = "clover"
    c.head = "clover"
    if target != "tiny":
        c.init.layer = 0  # of the target, that the head's layers begin as
    c.method.drafter = "drafters/clover"
    c.method.topology = {"name": "topologies/static"}
    return c
