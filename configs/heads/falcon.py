"""Falcon's draft for `tiny`: an LSTM and one layer, two tokens a pass.

Gao et al., *Falcon*, 2025, arXiv 2412.12639.

Command:  python -m experiments.run --config=configs/heads/falcon.py
              --workdir=runs/falcon
Hardware: 2 CPU cores.
At scale: falcon.py:llama3_8b, 2 rows of 2,048 tokens, rate 3e-5, 20 epochs.
Tree:     built from the measured hits. `--config.tree_nodes=0` decodes with the paper's
          tree of 75 drafts instead; for its tree of 165 add also
          `--config.method.topology.choices="20 | 10,2,2,1 | ..."`, the code of
          `kmask2_8layer_tree` in configs/trees/falcon.py.
"""

import ml_collections

from configs.base import training
from configs.trees import falcon


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target,
        batch=2,
        rate=3e-5,
        warmup=2000,
        weight_decay=0.01,
        clip=0.0,
        clip_value=0.5,
        b2=0.95,
    )
    c.name = "falcon"
    c.head = "falcon"
    # The share of revealed tokens falls over the whole training.
    c.objective.rows = c.data.get_ref("tokens") // c.data.get_ref("window")
    c.method.drafter = "drafters/falcon"
    c.method.topology = {
        "name": "topologies/static",
        "choices": falcon.TREES["kmask2_4layer_tree"],
    }
    return c
