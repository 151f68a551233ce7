"""Where does speculation pay on a mixture of experts?

A call of n tokens of a dense model reads what a call of one does. Of a mixture it reads
the experts that the n tokens visit: E (1 - (1 - k / E)^n) a layer if they choose
independently, so that a draft must win more than it adds. A small mixture of 8 experts,
two of which a token visits (configs/language_models/tiny_moe.py), is decoded with
chains and trees of growing width; experts are counted, and calls timed beside `tiny`'s.

Command:  python -m experiments.run --config=configs/studies/moe_width.py
              --workdir=runs/moe_width
          after configs/language_models/tiny_moe.py, whose model is in
          runs/tiny_moe/export (or --config.model=FOLDER)
Hardware: 2 CPU cores, some 25 minutes.
"""

import ml_collections

WIDTHS = (2, 4, 8, 16, 32, 64)  # tokens of a round's block
# Depth, and the best nodes of a level that are drafted from.
GROWN = {2: (1, 1), 4: (2, 2), 8: (4, 3), 16: (6, 4), 32: (8, 6), 64: (8, 10)}


def arms() -> tuple[tuple, ...]:
    """List (shape, width, topology) of the draft model's chains and trees."""
    rows: list[tuple] = []
    for width in WIDTHS:
        if width <= 16:
            chain = {"name": "topologies/chain", "length": width - 1}
            rows.append(("chain", width, chain))
        depth, best = GROWN[width]
        tree = {"name": "topologies/eagle2", "nodes": width, "depth": depth}
        rows.append(("tree", width, {**tree, "top_k": best}))
    return tuple(rows)


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `moe_width`."""
    c = ml_collections.ConfigDict()
    c.stage = "moe_width"
    c.model = "runs/tiny_moe/export"
    c.dense = "tiny"  # whose calls are timed beside the mixture's
    c.draft = "tiny-draft"  # of the mixture's tokenizer
    c.seed = 0
    c.data = ""  # questions of a file in place of the project's own tasks
    c.tasks = ("code",)
    c.prompts = 12  # of each task
    c.batches = (1, 4)  # prompts decoded together
    c.prompt_tokens = 128
    c.max_new_tokens = 96
    c.temperatures = (0.0, 0.8)
    c.arms = arms()  # (shape, tokens of a block, topology) of each draft
    return c
