"""Draft heads and lookups beside a target of 29 or 98 million parameters.

`tiny` with weights that change no text (models/synthetic/larger.py): what it accepts
is real, and its call costs what a larger model's does. FSPAD's head is then 4 or 1 %
of the target; EAGLE-3's for 8 B is 5 % (424.7 M).

python -m experiments.run --config=configs/studies/larger_target.py \\
    --workdir=runs/larger_29m
python -m experiments.run --config=configs/studies/larger_target.py \\
    --workdir=runs/larger_98m --config.larger=98000000

Hardware: two cores, six and eighteen minutes. Expected: `identical_to_plain` true in
every row; Token Recycling gains with automatic widths on greedy text.
"""

import ml_collections

HEADS = {"fspad": "tiny-fspad"}  # shipped with `tiny`


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.larger = 29_000_000
    config.trained = HEADS
    config.width = ("auto",)
    config.methods = ("plain", "token_recycling", "prompt_lookup", "copyspec", *HEADS)
    config.tasks = ("code", "text")
    config.temperatures = (0.0, 0.8)
    config.prompts = 4
    config.prompt_tokens = 192
    config.max_new_tokens = 96
    config.repeats = 3
    return config
