"""Chimera's draft for `tiny`: trigrams, one layer, four heads.

Zeng et al., *Chimera*, 2024, arXiv 2402.15758.

Command:  python -m experiments.run --config=configs/heads/chimera.py
              --workdir=runs/chimera
Hardware: 2 CPU cores.
At scale: chimera.py:llama3_8b, 32 rows of 1,024 tokens, rate 2e-4, 2 epochs.
Params:   12 D^2 of trigrams, a layer, and 2 V D of every head.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(
        target, batch=32, window=1023, rate=2e-4, warmup=42, clip=1.0, epochs=2
    )
    c.name = "chimera"
    c.head = "chimera"
    c.init.heads = 4
    c.method.drafter = "drafters/chimera"
    c.method.topology = {"name": "topologies/static"}
    return c
