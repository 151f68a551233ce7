"""Hydra++ heads for `tiny`: prefix attention, four blocks, the teacher's law.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 4.

Command:  python -m experiments.run --config=configs/heads/hydra_pp.py
              --workdir=runs/hydra_pp
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "hydra_pp"
    c.head = "hydra"
    c.init.update(heads=4, prefix=True, deep=True)
    c.objective.update(label=0.0, soft=1.0, dropout=0.2)
    c.method.drafter = "drafters/hydra"
    c.method.topology = {"name": "topologies/static"}
    return c
