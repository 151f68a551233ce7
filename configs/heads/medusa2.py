"""Medusa-2 for `tiny`: heads and low-rank changes to the target, trained together.

Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.2.2. The changed model is
another model: its text is compared with its own plain decoding. For the first fifth
the heads learn alone.

Command:  python -m experiments.run --config=configs/heads/medusa2.py
              --workdir=runs/medusa2
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.heads import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.get_config()
    c.name = "medusa2"
    c.head = "medusa2"
    c.init.update(heads=5, rank=32)
    c.objective.warm = c.data.get_ref("tokens") // c.data.get_ref("window") // 5
    c.method.drafter = "drafters/medusa"
    c.method.topology = {"name": "topologies/static"}
    return c
