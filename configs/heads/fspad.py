"""FSPAD's draft layer for `tiny`, with EAGLE-2's tree.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562.

Command:  python -m experiments.run --config=configs/heads/fspad.py
              --workdir=runs/fspad
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import eagle2


def get_config() -> ml_collections.ConfigDict:
    c = eagle2.get_config()
    c.name = "fspad"
    c.head = "fspad"
    c.weights = "fspad"
    c.method.drafter = "drafters/fspad"
    return c
