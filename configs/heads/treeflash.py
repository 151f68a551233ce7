"""TreeFlash's block drafter for `tiny`: DFlash's block, and a layer that reads a token.

Rheinboldt, Berdoz, Wattenhofer, *TreeFlash*, 2026, arXiv 2606.03819: a gated layer
moves each slot's state by the token before it, and the most probable tree of 64 nodes
is verified. Here 32 nodes.

Command:  python -m experiments.run --config=configs/heads/treeflash.py
              --workdir=runs/treeflash
Hardware: 2 CPU cores, some 50 minutes.
At scale: treeflash.py:llama3_8b, with DFlash's schedule.
Params:   DFlash's, and 5 D F.
"""

import ml_collections

from configs.heads import dflash


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = dflash.get_config(target)
    c.name = "treeflash"
    c.head = "treeflash"
    c.method.drafter = "drafters/treeflash"
    tree = {
        "name": "topologies/best_first",
        "nodes": 32 if target == "tiny" else 64,
        "depth": 7,
    }
    dflash.tree_first(c, tree)
    return c
