"""Domino's block drafter for `tiny`: DFlash's block, and a GRU over the drafts.

Huang et al., *Domino*, 2026, arXiv 2605.29707: a GRU of width 1024 and a layer of 256
correct every slot but the first; the loss goes from the block's own laws to the
corrected ones over the whole training. Here 7 slots, a GRU of width 128 and a layer of
64. A tree from a beam of eight is decoded beside the chain (DARTree, arXiv 2608.13524).

Command:  python -m experiments.run --config=configs/heads/domino.py
              --workdir=runs/domino
Hardware: 2 CPU cores.
At scale: domino.py:llama3_8b, 256 anchors a row, blocks of 16, decay 7.
Params:   DFlash's, 3 G (D + G), and E (D + G + V).
"""

import ml_collections

from configs.heads import dflash


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = dflash.get_config(target)
    c.name = "domino"
    c.head = "domino"
    c.init.update(block=16, width=1024, rank=256)
    beam = {"name": "topologies/eagle2", "nodes": 32, "depth": 7, "top_k": 8}
    c.beside.tree = {"topology": beam}
    if target == "tiny":
        c.init.update(block=7, width=128, rank=64)
        c.objective.decay = 4.0
    else:
        c.objective.anchors = 256
        c.method.topology.length = 16
    # Over the rows of the whole training.
    c.objective.blend = c.data.get_ref("tokens") // c.data.get_ref("window")
    c.method.drafter = "drafters/domino"
    return c
