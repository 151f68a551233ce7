"""What the parts of DSpark and JetSpec add to DFlash's block, one at a time.

DSpark (arXiv 2607.05147) is DFlash's block (2602.06036) with a slot for every token, a
loss of total variation, and a Markov head; JetSpec's (2606.18394) has a causal mask and
a loss of divergence, all slots alike. All decode chains of seven, the papers'
rejection, and trees of 32 nodes.

    dflash           the block as published
    dspark_no_head   DSpark's slots and loss, without its head
    dspark           with the head; dspark_gated and dspark_rnn with its other forms
    dflash_causal    DFlash's loss under JetSpec's mask
    dflash_kl        JetSpec's loss under DFlash's mask
    jetspec_block    both

Command:  python -m experiments.run --config=configs/heads/block_ablation.py
              --workdir=runs/block_ablation
Hardware: 2 CPU cores, some 50 minutes; trainings and rows resume where they stopped.
Figures:  experiments/reports/block_ablation.md, of the first four
"""

import ml_collections

from configs.heads import compare

DIVERGENCE = {"ce": 0.0, "kl": 1.0, "decay": 0.0}  # JetSpec's loss
VARIANTS: dict[str, dict] = {
    "dflash": {"recipe": "dflash"},
    "dspark_no_head": {
        "recipe": "dflash",
        "init": {"shifted": True, "block": 7},
        "objective": {"ce": 0.1, "l1": 0.9},
    },
    "dspark": {"recipe": "dspark"},
    "dflash_causal": {"recipe": "dflash", "init": {"causal": True}},
    "dflash_kl": {"recipe": "dflash", "objective": DIVERGENCE},
    "jetspec_block": {
        "recipe": "dflash",
        "init": {"causal": True},
        "objective": DIVERGENCE,
    },
    "dspark_gated": {"recipe": "dspark", "init": {"markov": "gated"}},
    "dspark_rnn": {"recipe": "dspark", "init": {"markov": "rnn"}},
}
PAIRS = (
    ("dspark_no_head", "dflash"),
    ("dspark", "dspark_no_head"),
    ("dspark", "dflash"),
    ("dflash_causal", "dflash"),
    ("dflash_kl", "dflash"),
    ("jetspec_block", "dflash"),
    ("dspark_gated", "dspark"),
    ("dspark_rnn", "dspark"),
)


def get_config() -> ml_collections.ConfigDict:
    c = compare.get_config()
    c.name = "block_ablation"
    c.variants.update(VARIANTS)
    c.recipes = tuple(VARIANTS)
    c.train.evaluate_every = 0
    c.repeats = 1
    c.directions = tuple(
        (f"{name}{row}", f"{base}{row}")
        for name, base in PAIRS
        for row in ("", "_rejection", "_tree")
    )
    return c
