"""Do narrower trees of the shipped heads pay on a CPU, where 32 nodes do not?

A call of `tiny` with a block of 8 tokens takes as long as two or three with one token,
with 32 four or more: a head's tree of 32 nodes commits too little for that. Chains of
two to four drafts and trees of 4 to 16 nodes, each beside plain decoding.

Command:  python -m experiments.run --config=configs/studies/head_widths.py
              --workdir=runs/head_widths
Hardware: 2 CPU cores, some six minutes. Figures: experiments/reports/quickstart.md.
"""

import ml_collections

from configs import quickstart

CHAINS = (2, 3, 4)  # drafts
# Nodes, depth, and the best of a level that are drafted from.
TREES = ((4, 2, 2), (6, 3, 2), (8, 3, 3), (8, 4, 2), (12, 4, 3), (16, 5, 4))
DRAFTERS = {"eagle2": "drafters/eagle", "fspad": "drafters/fspad"}


def get_config() -> ml_collections.ConfigDict:
    """Return a recipe of the stage `evaluate`."""
    config = quickstart.get_config()
    shapes = {
        f"{nodes}_{depth}": {
            "name": "topologies/eagle2",
            "nodes": nodes,
            "depth": depth,
            "top_k": best,
        }
        for nodes, depth, best in TREES
    }
    for length in CHAINS:
        shapes[f"chain{length}"] = {"name": "topologies/chain", "length": length}
    config.variants, config.trained = {}, {}
    for head, drafter in DRAFTERS.items():
        for shape, topology in shapes.items():
            name = f"{head}_{shape}"
            config.variants[name] = {"drafter": drafter, "topology": topology}
            config.trained[name] = quickstart.HEADS[head]
    config.methods = ("plain", *config.variants)
    config.width = ("paper",)
    config.tasks = ("code",)
    config.temperatures = (0.8,)
    config.transforms, config.task_methods, config.trees = {}, {}, ()
    config.curve = False
    return config
