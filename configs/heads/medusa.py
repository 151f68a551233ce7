"""Medusa heads for `tiny`.

Cai et al., *Medusa*, 2024, arXiv 2401.10774: five heads of one residual block, each
with output rows of its own that begin as the target's.

Command:  python -m experiments.run --config=configs/heads/medusa.py
              --workdir=runs/medusa
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "medusa"
    c.head = "medusa"
    c.init.heads = 5
    c.method.drafter = "drafters/medusa"
    c.method.topology = {"name": "topologies/static"}
    return c
