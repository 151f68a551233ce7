"""PPD's prompt tokens for `tiny`: three, of one copy each.

Chen et al., *PPD*, 2024, arXiv 2405.18628: 3 D numbers are trained, at the paper's
rate, which is ten times that of heads with weights. The target's block has 32 nodes:
the root with its 3 prompt tokens, and 28 candidates and prompt tokens of sparse trees
built from the measured hits. `--config.tree_budgets="(12,20,28,44,60)"` times rounds of
these budgets and decodes with the one of most tokens a second.

Command:  python -m experiments.run --config=configs/heads/ppd.py
              --workdir=runs/ppd
Hardware: 2 CPU cores.
At scale: ppd.py:llama3_8b, 16 rows of 2,048 tokens, no warm-up, 1 epoch, and
          the paper's budget of 60.
Params:   3 D.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target, batch=16, warmup=0, clip=1.0, epochs=1)
    c.name = "ppd"
    c.head = "ppd"
    c.init.update(prompts=3, copies=1)
    c.train.rate = 0.01
    c.tree_nodes, c.tree_budget = 0, 28 if target == "tiny" else 60
    c.tree_budgets = ()  # several: the fastest here is measured and used
    if target != "tiny":
        c.objective.remat = True  # gradients pass through the target
    c.method.drafter = "drafters/ppd"
    c.method.topology = {"name": "topologies/chain", "length": 3}
    return c
