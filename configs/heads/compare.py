"""Draft heads for `tiny` on equal data, at the same budget of 32 nodes.

Papers: Medusa (arXiv 2401.10774), Hydra (2402.05109), EAGLE (2401.15077), EAGLE-2
(2406.16858), EAGLE-3 (2503.01840), whose order by tokens per call at 7-13B is Medusa
2.3 < Hydra++ 3.3 < EAGLE 3.6 < EAGLE-2 4.3 < EAGLE-3 5.7 (Spec-Bench, greedy); FSPAD
(2408.15562), and the block drafters DFlash (2602.06036), DSpark (2607.05147) and
JetSpec (2606.18394). Each is trained as its own recipe says, which heads.head_recipes
chose for most of them.

Command:  python -m experiments.run --config=configs/heads/compare.py
              --workdir=runs/compare
Hardware: 2 CPU cores, within an hour. Training and rows resume where they stopped.
`--config.data.tokens=2_000_000` trains on four times the text; `--config.full=true`
adds all other heads to that, and trains the first with three seeds: many hours.
"""

import ml_collections

from configs.base import training


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = training.get_config(target)
    c.name = "compare"
    c.target = target  # of the recipes
    # Of configs/heads.
    c.recipes = (
        *("medusa", "hydra", "eagle", "eagle2", "fspad", "eagle3"),
        *("dflash", "dspark", "jetspec"),
    )
    # More recipes by name: {"recipe": one of configs/heads, and fields to override}.
    c.variants = ml_collections.ConfigDict(type_safe=False)
    c.full = False  # the long comparison: all heads
    c.full_recipes = (  # once each, beside the others
        "medusa2",
        "hydra_pp",
        "clover",
        "hidden_transfer",
        "ppd",
        "falcon",
        "chimera",
        "lud",
        "dflash2",
        "domino",
        "treeflash",
        "p_eagle",
    )
    c.full_tokens = 2_000_000  # of each training
    c.full_seeds = (0, 1, 2)  # of `recipes`
    c.directions = (  # the papers' order
        ("hydra", "medusa"),
        ("eagle", "hydra"),
        ("eagle2", "eagle"),
        ("eagle3", "eagle2"),
        ("fspad", "eagle2"),
        ("dspark", "dflash"),
        ("jetspec", "dflash_tree"),
    )
    return c
