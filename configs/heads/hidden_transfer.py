"""Hidden Transfer's maps for `tiny`: three pseudo states, born in the middle.

Wu et al., *Hidden Transfer*, 2024, arXiv 2404.12022, a reconstruction. The target's
block has 32 nodes: 8 candidates, the root among them, and 3 pseudo states for each.

Command:  python -m experiments.run --config=configs/heads/hidden_transfer.py
              --workdir=runs/hidden_transfer
Hardware: 2 CPU cores.
At scale: hidden_transfer.py:llama3_8b, the shared schedule for 2 epochs (the
          paper's is unknown), and 16 candidates: 64 nodes.
Params:   D^2 a pseudo state.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target, epochs=2)
    c.name = "hidden_transfer"
    c.head = "hidden_transfer"
    c.init.steps = 3
    c.tree_nodes = 8 if target == "tiny" else 16
    if target != "tiny":
        c.objective.remat = True  # gradients pass through the target
    c.method.drafter = "drafters/hidden_transfer"
    c.method.topology = {"name": "topologies/chain", "length": 3}
    return c
