"""EAGLE-2 for `tiny`: EAGLE's draft layer with the dynamic tree.

Li et al., *EAGLE-2*, 2024, arXiv 2406.16858. The weights are those of `eagle`.

Command:  python -m experiments.run --config=configs/heads/eagle2.py
              --workdir=runs/eagle2
Hardware: 2 CPU cores.
At scale: eagle2.py:llama3_8b, EAGLE's schedule, the paper's tree.
Params:   EAGLE's.
"""

import ml_collections

from configs.heads import eagle


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = eagle.get_config(target)
    c.name = "eagle2"
    c.tree_nodes = 0
    nodes, depth, top_k = (32, 5, 6) if target == "tiny" else (60, 6, 10)
    c.method.topology = {
        "name": "topologies/eagle2",
        "nodes": nodes,
        "depth": depth,
        "top_k": top_k,
    }
    return c
