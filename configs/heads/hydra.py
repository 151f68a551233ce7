"""Hydra heads for `tiny`.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 3: four heads of one block.

Command:  python -m experiments.run --config=configs/heads/hydra.py
              --workdir=runs/hydra
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "hydra"
    c.head = "hydra"
    c.init.heads = 4
    c.method.drafter = "drafters/hydra"
    c.method.topology = {"name": "topologies/static"}
    return c
