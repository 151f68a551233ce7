"""Draft heads for `tiny` on equal data, at the same budget of 32 nodes.

Papers: Medusa (arXiv 2401.10774), Hydra and Hydra++ (2402.05109), EAGLE (2401.15077),
EAGLE-2 (2406.16858), EAGLE-3 (2503.01840), whose order by tokens per call at 7-13B is
Medusa 2.3 < Hydra++ 3.3 < EAGLE 3.6 < EAGLE-2 4.3 < EAGLE-3 5.7 (Spec-Bench, greedy).

Command:  python -m experiments.run --config=configs/heads/compare.py
              --workdir=runs/compare
Hardware: 2 CPU cores, within an hour. Training and rows resume where they stopped.
`--config.data.tokens=2000000 '--config.seeds=(0,1,2)'` is the longer comparison.
"""

import ml_collections

from configs.heads import shared


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = shared.get_config(target)
    c.name = "compare"
    names = ("medusa", "hydra", "hydra_pp", "eagle", "eagle2", "eagle3")
    given = "" if target == "tiny" else f":{target}"
    c.recipes = tuple(name + given for name in names)
    return c
