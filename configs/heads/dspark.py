"""DSpark's block drafter for `tiny`: DFlash's block, and a Markov head.

Cheng et al., *DSpark*, 2026, arXiv 2607.05147: 7 slots guess 7 tokens, a head of rank
256 corrects each by the token before, and another one rates the drafts. Here the rank
is 64, and the most probable tree of 32 nodes is decoded beside the chain (PCTree,
arXiv 2608.02123).

Command:  python -m experiments.run --config=configs/heads/dspark.py
              --workdir=runs/dspark
Hardware: 2 CPU cores.
At scale: dspark.py:llama3_8b, 512 anchors a row, AdamW at 6e-4, 4 % warm-up, 10 epochs.
Params:   DFlash's, and 2 r V.
"""

import ml_collections

from configs.heads import dflash


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = dflash.get_config(target)
    c.name = "dspark"
    c.head = "dspark"
    c.init.update(block=7, rank=64 if target == "tiny" else 256)
    c.method.drafter = "drafters/dspark"
    return c
