"""DFlash 2's block drafter for `tiny`: convolutions in the block, and a selector.

Inco AI, *DFlash 2*, 2026, inco.ai/blog/dflash2: two taps around every sublayer, and a
head of rank 256 that chooses among the 16 best tokens of each slot. Here the rank is
64.

Command:  python -m experiments.run --config=configs/heads/dflash2.py
              --workdir=runs/dflash2
Hardware: 2 CPU cores, some 50 minutes.
At scale: dflash2.py:llama3_8b, with DFlash's schedule.
Params:   DFlash's, 3 % for the convolutions, and 2 r V + r D.
"""

import ml_collections

from configs.heads import dflash


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = dflash.get_config(target)
    c.name = "dflash2"
    c.head = "dflash2"
    c.init.rank = 64 if target == "tiny" else 256
    c.method.drafter = "drafters/dflash2"
    return c
