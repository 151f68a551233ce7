"""FSPAD's draft layer for `tiny`, with EAGLE-2's tree.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562.

Command:  python -m experiments.run --config=configs/heads/fspad.py
              --workdir=runs/fspad
Hardware: 2 CPU cores.
At scale: fspad.py:llama3_8b, EAGLE's schedule but for the rate, 5e-5, the weight
          decay, and clipping by value.
"""

import ml_collections

from configs.heads import eagle2


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = eagle2.get_config(target)
    c.name = "fspad"
    c.head = "fspad"
    c.weights = "fspad"
    c.method.drafter = "drafters/fspad"
    if target != "tiny":
        # As the authors' script, PyTorch's AdamW and clipping by value.
        c.train.update(rate=5e-5, weight_decay=0.01, clip=0.0, clip_value=0.5)
    return c
