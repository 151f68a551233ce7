"""How fast this machine trains draft heads and decodes with them, without weights.

Targets have random weights: a training step and a round of the decode loop cost as much
as with trained ones. Acceptance is not measured (random heads are hardly ever right),
so read time and MBU of a round, not its speed-up.

Command:  python -m experiments.run --config=configs/studies/synthetic_speed.py
              --workdir=runs/speed
Hardware: one GPU of 80 GiB. `'--config.targets=("small",)'` runs anywhere.
"""

import ml_collections

from configs.base import targets

TARGETS = {
    "small": {  # some 30 M parameters
        **targets.LLAMA3_8B,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "vocab_size": 16384,
    },
    "1B": {  # Llama 3.2
        **targets.LLAMA3_8B,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8B": targets.LLAMA3_8B,
}


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `synthetic_speed`."""
    c = ml_collections.ConfigDict()
    c.stage = "synthetic_speed"
    c.name = "speed"  # of the run, in reports
    c.seed = 0
    c.targets = ("1B", "8B")  # names of `shapes` to measure
    # Name -> fields of a config.json.
    c.shapes = ml_collections.ConfigDict(TARGETS)
    c.recipes = ("hydra_pp", "eagle3")  # of configs/heads, at the size of Llama 3 8B
    c.dtype = "bfloat16"  # of the target, and of heads in decoding

    c.batch = 8  # rows of a training step
    c.window = 2047  # tokens of a row, less its last
    c.rows_at_once = 1  # of a training batch
    c.part = 4096  # positions whose logits exist at a time
    c.compute_dtype = "bfloat16"  # heads, their gradients and optimiser are float32
    c.steps = 10  # timed, after a first that is not

    c.texts = 2  # decoded one at a time
    c.prompt_tokens = 1024
    c.max_new_tokens = 128
    c.temperature = 0.0  # of the texts
    c.repeats = 5
    return c
