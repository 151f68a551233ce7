"""Block drafters side by side: chains, the papers' rejection, and trees of each.

Heads of the recipes `dflash`, `dspark`, `jetspec`, `domino`, `treeflash` and `dflash2`
of configs/heads, trained on the same text, decode the same prompts with the methods of
their recipes.

Command:  python -m experiments.run --config=configs/heads/dflash.py
              --workdir=runs/dflash
          and so on for the others, then
          python -m experiments.run --config=configs/studies/block_drafters.py
              --workdir=runs/block_drafters
          `--config=configs/studies/block_drafters.py:dflash,dspark` takes some of them.
Hardware: 2 CPU cores, some 15 minutes; calls are counted, nothing is timed.

Papers:   DSpark has 1.13 to 1.20 times DFlash's tokens a call in chains of 7 at T = 1
          (arXiv 2607.05147, table 1), TreeFlash 1.12 times a marginal tree's (arXiv
          2606.03819).
"""

import importlib

import ml_collections

from models.errors import ConfigError

HEADS = ("dflash", "dspark", "jetspec", "domino", "treeflash", "dflash2")
DIRECTIONS = (
    ("dspark", "dflash"),
    ("dspark_rejection", "dflash_rejection"),
    ("domino", "dflash"),
    ("dflash2", "dflash"),
    ("dflash_tree", "dflash"),
    ("dspark_tree", "dspark"),
    ("domino_tree", "domino"),
    ("dspark_tree", "dflash_tree"),
    ("jetspec", "dflash_tree"),
    ("treeflash", "dflash_tree"),
    ("jetspec", "jetspec_chain"),
    ("treeflash", "treeflash_chain"),
)


def get_config(heads: str = "") -> ml_collections.ConfigDict:
    """Return a recipe of the stage `evaluate`.

    Args:
        heads: some of `HEADS`, joined by commas; empty: all.

    Raises:
        ConfigError: another one.
    """
    chosen = tuple(heads.split(",")) if heads else HEADS
    unknown = sorted(set(chosen) - set(HEADS))
    if unknown:
        raise ConfigError(f"block_drafters:{heads}: {unknown} are none of {HEADS}")
    config = ml_collections.ConfigDict()
    config.variants, config.trained = {}, {}
    for head in chosen:
        recipe = importlib.import_module(f"configs.heads.{head}").get_config()
        whole = recipe.method.to_dict()
        for name, parts in {"": {}, **recipe.beside.to_dict()}.items():
            arm = f"{head}_{name}" if name else head
            config.variants[arm] = {**whole, **parts}
            config.trained[arm] = f"runs/{head}/heads/{head}-s0/export"
    config.methods = ("plain", *config.variants)
    config.directions = tuple(
        pair for pair in DIRECTIONS if set(pair) <= set(config.variants)
    )
    config.tasks = ("code",)
    config.temperatures = (0.0, 0.8)
    config.seeds = (0, 1)
    config.prompts = 24
    config.batch = 24
    config.prompt_tokens = 128
    config.max_new_tokens = 96
    config.repeats = 1
    config.curve = False
    return config
