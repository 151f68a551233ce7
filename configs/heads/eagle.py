"""EAGLE-1's draft layer for `tiny`, with a static tree.

Li et al., *EAGLE*, 2024, arXiv 2401.15077.

Command:  python -m experiments.run --config=configs/heads/eagle.py
              --workdir=runs/eagle
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "eagle"
    c.head = "eagle"
    c.weights = "eagle"  # what its training is called: eagle2 has the same
    c.method.drafter = "drafters/eagle"
    c.method.topology = {"name": "topologies/static"}
    return c
