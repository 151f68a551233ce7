"""Hydra++ heads for `tiny`: prefix attention, four blocks, the teacher's law.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 4.

Command:  python -m experiments.run --config=configs/heads/hydra_pp.py
              --workdir=runs/hydra_pp
Hardware: 2 CPU cores.
At scale: hydra_pp.py:llama3_8b, 32 rows of 2,048 tokens, rate 5e-4, 10 epochs.
Params:   Hydra's, D^2 + D a head more, and a layer of the target's size.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=32, warmup=100, weight_decay=0.1, clip=1.0, epochs=10
    )
    c.name = "hydra_pp"
    c.head = "hydra"
    c.init.update(heads=4, prefix=True, deep=True)
    c.objective.update(label=0.0, soft=1.0, dropout=0.2)
    c.method.drafter = "drafters/hydra"
    c.method.topology = {"name": "topologies/static"}
    return c
