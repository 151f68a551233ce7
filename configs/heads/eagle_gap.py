"""Why EAGLE-3 is behind EAGLE-1 on `tiny`: one difference between them at a time.

Papers: EAGLE-2 (arXiv 2406.16858), EAGLE-3 (2503.01840). EAGLE-3 differs in three ways.
It reads no states of the target's last three layers (three of eight here, of 32 at 7B).
It trains with several steps of training-time test. Its loss has no regression to the
target's states. All decode with EAGLE-2's tree, and train by one schedule, EAGLE-3 with
the paper's seven steps.

Command:  python -m experiments.run --config=configs/heads/eagle_gap.py
              --workdir=runs/eagle_gap
Hardware: 2 CPU cores. `--config.data.tokens=2_000_000`: as in the full table.
"""

import ml_collections

from configs.heads import compare, head_recipes

LAST = (2, 4, 8)  # of eight layers: the last one's state in place of the fifth's


def get_config() -> ml_collections.ConfigDict:
    c = compare.get_config()
    c.name = "eagle_gap"
    seven = head_recipes.SEVEN
    for name, recipe, objective in (
        ("eagle2_usual", "eagle2", {}),
        ("eagle3_usual", "eagle3", seven),
        ("eagle2_no_regression", "eagle2", {"regression": 0.0}),
        ("eagle3_one_step", "eagle3", {"steps": 1}),
        ("eagle3_last_layer", "eagle3", {**seven, "taps": LAST}),
    ):
        schedule = head_recipes.SCHEDULES["usual"]
        c.variants[name] = {"recipe": recipe, "objective": objective, **schedule}
    c.recipes = tuple(c.variants)
    c.directions = tuple((c.recipes[0], name) for name in c.recipes[1:])
    return c
