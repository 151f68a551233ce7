"""LUD's placeholders for `tiny`: three, whose confident guesses are committed.

Sun et al., *Lexical unit decoding*, 2024, arXiv 2405.15208, a reconstruction. The text
is not plain decoding's (LOSSY).

Command:  python -m experiments.run --config=configs/heads/lud.py
              --workdir=runs/lud
Hardware: 2 CPU cores.
At scale: lud.py:llama3_8b, the shared schedule but for PPD's rate and epoch.
Params:   3 D.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target, epochs=1)
    c.name = "lud"
    c.head = "lud"
    c.init.slots = 3
    c.train.rate = 0.01  # PPD's, whose params have the same shape
    c.tree_nodes = 0
    if target != "tiny":
        c.objective.remat = True  # gradients pass through the target
    c.method.drafter = "drafters/lud"
    c.method.verifier = {"name": "verifiers/lud", "threshold": 0.9}
    return c
