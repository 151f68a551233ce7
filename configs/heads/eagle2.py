"""EAGLE-2 for `tiny`: EAGLE's draft layer with the dynamic tree.

Li et al., *EAGLE-2*, 2024, arXiv 2406.16858. The weights are those of `eagle`.

Command:  python -m experiments.run --config=configs/heads/eagle2.py
              --workdir=runs/eagle2
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import eagle


def get_config() -> ml_collections.ConfigDict:
    c = eagle.get_config()
    c.name = "eagle2"
    c.tree_nodes = 0
    c.method.topology = {
        "name": "topologies/eagle2",
        "nodes": 32,
        "depth": 5,
        "top_k": 6,
    }
    return c
