"""Draft heads for `tiny` on equal data, at the same budget of 32 nodes.

Papers: Medusa (arXiv 2401.10774), Hydra and Hydra++ (2402.05109), EAGLE (2401.15077),
EAGLE-2 (2406.16858), EAGLE-3 (2503.01840), whose order by tokens per call at 7-13B is
Medusa 2.3 < Hydra++ 3.3 < EAGLE 3.6 < EAGLE-2 4.3 < EAGLE-3 5.7 (Spec-Bench, greedy).

Command:  python -m experiments.run --config=configs/heads/compare.py
              --workdir=runs/compare
Hardware: 2 CPU cores, within an hour. Training and rows resume where they stopped.
`--config.full=true` adds all other heads, trains on 2,000,000 tokens each, and the six
with three seeds: many hours.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target)
    c.name = "compare"
    c.target = target  # of the recipes
    # Of configs/heads.
    c.recipes = ("medusa", "hydra", "hydra_pp", "eagle", "eagle2", "eagle3")
    # More recipes by name: {"recipe": one of configs/heads, and fields to override}.
    c.variants = ml_collections.ConfigDict(type_safe=False)
    c.full = False  # the long comparison: all heads
    c.full_recipes = (  # once each, beside the others
        "medusa2",
        "clover",
        "fspad",
        "hidden_transfer",
        "ppd",
        "falcon",
        "chimera",
        "lud",
        "dflash",
        "dflash2",
        "dspark",
        "domino",
        "treeflash",
        "p_eagle",
    )
    c.full_tokens = 2_000_000  # of each training
    c.full_seeds = (0, 1, 2)  # of `recipes`
    c.directions = (  # the papers' order
        ("hydra", "medusa"),
        ("hydra_pp", "hydra"),
        ("eagle", "hydra_pp"),
        ("eagle2", "eagle"),
        ("eagle3", "eagle2"),
    )
    return c
