"""P-EAGLE's draft layers for `tiny`: EAGLE-3's pairs, and masks behind them.

Hui et al., *P-EAGLE*, 2026, arXiv 2602.01469: four layers guess eight tokens in a pass;
a depth is trained at 0.7 of the places of the one above, a fifth of them at least. Here
two layers guess five tokens.

Command:  python -m experiments.run --config=configs/heads/p_eagle.py
              --workdir=runs/p_eagle
Hardware: 2 CPU cores.
At scale: p_eagle.py:llama3_8b, AdamW at 1e-4, 20 epochs, 32,000 tokens in the draft's
          vocabulary V'.
Params:   3 D^2 + V' D, a layer whose attention reads 2 D, and three plain ones.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target, batch=16, rate=1e-4, warmup=1000, epochs=20)
    c.name = "p_eagle"
    c.head = "p_eagle"
    c.objective.keep = 0.7
    c.method.drafter = "drafters/p_eagle"
    c.method.topology = {"name": "topologies/static"}
    if target == "tiny":
        c.init.update(layers=2, depths=5)
        training.muon(c)
    else:
        c.draft_vocab = 32_000
    return c
