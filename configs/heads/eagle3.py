"""EAGLE-3's draft layer for `tiny`, with EAGLE-2's tree.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840: seven steps of training-time test. The
draft's vocabulary is the target's: the paper's 32,000 tokens are more than `tiny` has.

Command:  python -m experiments.run --config=configs/heads/eagle3.py
              --workdir=runs/eagle3
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import eagle2


def get_config() -> ml_collections.ConfigDict:
    c = eagle2.get_config()
    c.name = "eagle3"
    c.head = "eagle3"
    c.weights = "eagle3"
    c.method.drafter = "drafters/eagle3"
    return c
