"""JetSpec's block drafter for `tiny`: DFlash's block, causal, on the target's laws.

Hu, Feng, Wu, Yuan et al., *JetSpec*, 2026, arXiv 2606.18394: a slot sees the slots
before it alone, the loss is the divergence from the target, all slots weigh the same,
and the most probable node of the tree gets all its children at once.

Command:  python -m experiments.run --config=configs/heads/jetspec.py
              --workdir=runs/jetspec
Hardware: 2 CPU cores.
At scale: jetspec.py:llama3_8b, 256 anchors a row, blocks of 16, a tree of 256 nodes.
Params:   DFlash's.
"""

import ml_collections

from configs.heads import dflash


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = dflash.get_config(target)
    c.name = "jetspec"
    c.head = "dflash"
    c.init.causal = True
    nodes, depth = (32, 7) if target == "tiny" else (256, 15)
    if target != "tiny":
        c.init.block = 16
        c.objective.anchors = 256
    c.objective.update(ce=0.0, kl=1.0, decay=0.0)
    tree = {
        "name": "topologies/jetspec",
        "nodes": nodes,
        "depth": depth,
        "children": 4 if target == "tiny" else 16,
    }
    dflash.tree_first(c, tree)
    return c
