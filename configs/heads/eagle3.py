"""EAGLE-3's draft layer for `tiny`, with EAGLE-2's tree.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840: seven steps of training-time test, for
`tiny` three. The draft's vocabulary is the target's: the paper's 32,000 tokens are more
than `tiny` has.

Command:  python -m experiments.run --config=configs/heads/eagle3.py
              --workdir=runs/eagle3
Hardware: 2 CPU cores.
At scale: eagle3.py:llama3_8b, 16 rows of 2,048 tokens, rate 5e-5, a schedule of 800,000
          steps, and 32,000 tokens in the draft's vocabulary V'.
Params:   3 D^2 + V' D, and a layer whose attention reads 2 D.
"""

import ml_collections

from configs.base import training
from configs.heads import eagle2


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = eagle2.get_config(target)
    c.name = "eagle3"
    c.head = "eagle3"
    c.weights = "eagle3"
    c.method.drafter = "drafters/eagle3"
    if target == "tiny":
        # Three steps give more than seven here, in less than half of the time.
        c.objective.update(steps=3, remat=False)  # activations are small
        training.muon(c)
    else:
        c.draft_vocab = 32_000
        c.data.batch = 16  # two rows on each of eight devices
        # All of the official schedule, which its trainer may end after 40 epochs.
        c.data.tokens = 800_000 * c.data.batch * c.data.window
        c.train.update(rate=5e-5, warmup=12_000)
    return c
