"""Chimera's draft for `tiny`: trigrams, one layer, four heads.

Zeng et al., *Chimera*, 2024, arXiv 2402.15758.

Command:  python -m experiments.run --config=configs/heads/chimera.py
              --workdir=runs/chimera
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "chimera"
    c.head = "chimera"
    c.init.heads = 4
    c.method.drafter = "drafters/chimera"
    c.method.topology = {"name": "topologies/static"}
    return c
