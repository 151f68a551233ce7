"""Each head's own recipe on `tiny`: optimiser, steps, rate and clip, at equal tokens.

One schedule for all heads, AdamW at 1e-3 in steps of eight windows with gradients
clipped at 0.5, hides what a head can do: 0.5 M tokens are 245 steps, and the clip bites
in all of them. Here each head is trained five ways on the same 250,000 tokens:

    usual   that schedule
    steps   two windows a step, four times the steps
    open    the same without a clip
    muon    the same, the layers' matrices by Muon (rate 0.02), the rest at 0.002
    slow    the same at half of both rates

and EAGLE-3 with fewer steps of training-time test, too. Jordan et al., *Muon*, 2024.
Hydra++ is Hydra with a layer more and is not searched. The recipes of configs/heads
hold what was best.

Command:  python -m experiments.run --config=configs/heads/head_recipes.py
              --workdir=runs/head_recipes
Hardware: 2 CPU cores, some three hours; trainings and rows resume where they stopped.
Expected: slow is best for EAGLE-2 and FSPAD, muon for EAGLE-3; all but usual are even
for Medusa and Hydra (experiments/reports/head_recipes.md).
"""

import ml_collections

from configs.heads import compare

WEIGHTS = ("medusa", "hydra", "eagle2", "fspad", "eagle3")  # eagle2 decodes eagle's
SHORT = {"batch": 2}
SEVEN = {"steps": 7}  # of EAGLE-3's training-time test, in its paper
ADAMW = {"optimizer": "adamw", "rate": 0.001, "rows_at_once": 0}
MUON = {"optimizer": "muon", "rate": 0.002, "muon_rate": 0.02, "rows_at_once": 0}
SLOW = {"rate": 0.001, "muon_rate": 0.01}
SCHEDULES = {
    "usual": {"data": {"batch": 8}, "train": {**ADAMW, "clip": 0.5}},
    "steps": {"data": SHORT, "train": {**ADAMW, "clip": 0.5}},
    "open": {"data": SHORT, "train": {**ADAMW, "clip": 0.0}},
    "muon": {"data": SHORT, "train": {**MUON, "clip": 0.0}},
    "slow": {"data": SHORT, "train": {**MUON, **SLOW, "clip": 0.0}},
}
TEST_TIME_STEPS = (1, 3, 5)  # beside the paper's seven


def get_config() -> ml_collections.ConfigDict:
    c = compare.get_config()
    c.name = "head_recipes"
    for head in WEIGHTS:
        for name, fields in SCHEDULES.items():
            own = {"objective": SEVEN} if head == "eagle3" else {}
            c.variants[f"{head}_{name}"] = {"recipe": head, **own, **fields}
    for steps in TEST_TIME_STEPS:
        c.variants[f"eagle3_muon_{steps}_steps"] = {
            "recipe": "eagle3",
            "objective": {"steps": steps},
            **SCHEDULES["muon"],
        }
    c.recipes = tuple(c.variants)
    c.data.tokens = 250_000
    c.train.evaluate_every = 0
    c.update(temperatures=(0.8,), repeats=1)
    c.directions = tuple(
        (f"{head}_{name}", f"{head}_usual")
        for head in WEIGHTS
        for name in SCHEDULES
        if name != "usual"
    )
    return c
