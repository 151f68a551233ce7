"""DFlash's block drafter for `tiny`.

Chen, Liang, Liu, *DFlash*, 2026, arXiv 2602.06036: five layers read five of the
target's states, and a block of masks guesses in one pass. Here a block has 8 slots, so
decay is 4, and the matrices of the layers are trained by Muon, two windows a step with
32 anchors each, on 2.5 M tokens. The chain under the papers' rejection and DDTree's
tree (arXiv 2604.12989) are decoded beside the chain under the default verifier.

Command:  python -m experiments.run --config=configs/heads/dflash.py
              --workdir=runs/dflash
Hardware: 2 CPU cores, some 25 minutes.
At scale: dflash.py:llama3_8b, 512 anchors a row, AdamW at 6e-4, 4 % warm-up, 6 epochs.
Params:   n D^2, and `layers` layers.
"""

import ml_collections

from configs.base import training

REJECTION = "verifiers/rejection"  # the papers'; the default one couples


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=128, rate=6e-4, warmup=128, clip=1.0, b2=0.95, epochs=6
    )
    c.name = "dflash"
    c.head = "dflash"
    c.init.update(layers=5, block=8)
    c.objective.anchors = 512
    c.method.drafter = "drafters/dflash"
    c.method.topology = {"name": "topologies/chain", "length": 7}
    tree = {"name": "topologies/best_first", "nodes": 32, "depth": 7}
    c.beside.tree = {"topology": tree}
    c.beside.rejection = {"verifier": REJECTION}
    c.tree_nodes = 0
    c.evaluate.depth = 7
    if target == "tiny":
        small(c)
    return c


def tree_first(c: ml_collections.ConfigDict, tree: dict) -> None:
    """Change a block drafter's recipe in place to decode `tree`, and chains beside."""
    chain = c.method.topology.to_dict()
    c.method.topology = tree
    c.beside = {
        "chain": {"topology": chain},
        "rejection": {"topology": chain, "verifier": REJECTION},
    }


def small(c: ml_collections.ConfigDict) -> None:
    """Change a block drafter's recipe in place to what `tiny` is trained with."""
    c.init.layers = 2
    c.objective.update(anchors=32, remat=False)  # activations are small here
    c.data.tokens = 2_500_000
    training.muon(c)
    c.train.update(save_every=400, evaluate_every=1000)
