"""EAGLE-1's draft layer for `tiny`, with a static tree.

Li et al., *EAGLE*, 2024, arXiv 2401.15077.

Command:  python -m experiments.run --config=configs/heads/eagle.py
              --workdir=runs/eagle
Hardware: 2 CPU cores.
At scale: eagle.py:llama3_8b, 16 rows of 2,048 tokens (the DeepSpeed config's, on 4
          GPUs), the paper's rate 3e-5, 20 epochs. Clipping by the norm is that of
          the DeepSpeed config; the plain script clips each number.
Params:   2 D^2 + D, and a layer of the target's size without its first norm.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target, rate=3e-5, warmup=2000, b2=0.95)
    c.name = "eagle"
    c.head = "eagle"
    c.weights = "eagle"  # name of its training; eagle2 shares it
    c.method.drafter = "drafters/eagle"
    c.method.topology = {"name": "topologies/static"}
    if target == "tiny":
        training.muon(c, 0.5)
    return c
