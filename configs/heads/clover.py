"""Clover-2's heads for `tiny`: two augmenting layers and a recurrent cell.

Xiao et al., *Clover-2*, 2024, arXiv 2408.00264; five steps, the layers begin as the
target's last one.

Command:  python -m experiments.run --config=configs/heads/clover.py
              --workdir=runs/clover
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "clover"
    c.head = "clover"
    c.method.drafter = "drafters/clover"
    c.method.topology = {"name": "topologies/static"}
    return c
