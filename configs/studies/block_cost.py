"""Where does the time of a block go?

Where memory traffic alone counts, a block of 8 nodes costs little more than one of 1.
The table shows what it costs on this machine, part by part.

python -m experiments.run --config=configs/studies/block_cost.py
--workdir=runs/block_cost

Hardware: a CPU, two minutes. Expected: the products of the layers are the dearest part.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `block_cost`."""
    c = ml_collections.ConfigDict()
    c.stage = "block_cost"
    c.seed = 0
    c.model = "tiny"
    c.method = "prompt_lookup"  # a draft that costs next to nothing
    c.temperature = 0.8  # above 0 the noise is drawn too
    c.prompt_tokens = 192
    c.max_new_tokens = 96
    c.rounds = 64  # of one measurement
    c.repeats = 5
    return c
