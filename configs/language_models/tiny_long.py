"""The research target `tiny_long`: `tiny`, trained on to retrieve over 2,000 tokens.

Command:  python -m experiments.run --config=configs/language_models/tiny_long.py
              --workdir=runs/tiny_long
Hardware: 2 CPU cores; a step takes 11 seconds of processor time, all 240 of them 45
minutes, or some 25 minutes of two free cores.
Then:     python -m experiments.generate --model=runs/tiny_long/export ...

Training begins with the weights of the shipped `tiny`, at a RoPE base of 160,000. A
part of the windows holds 12 facts, 4 of which are asked for at its end
(training/data/planted_facts.py); names and values do not count where they first stand.
The rest are texts of 512 tokens, half of them with `tiny`'s repetitions, so that the
model keeps its law at the lengths that `tiny` was trained on.
"""

import ml_collections

from configs.language_models import tiny


def get_config() -> ml_collections.ConfigDict:
    """Return `tiny` with its weights, another base, and windows of 2,048 tokens."""
    c = tiny.get_config()
    c.name = "tiny_long"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_long.py "
        "--workdir=runs/tiny_long"
    )
    c.start = "tiny"  # a model that gives the first weights
    c.model.rope_theta = 160000.0
    c.data.tokenizer = "models/packaged/tiny/tokenizer.json"
    c.data.stages = ((240, 4, 2048),)
    c.data.facts = "code"  # their form: training/data/planted_facts.py
    c.data.facts_share = 0.4  # of the windows
    c.data.short = 512  # tokens of the texts in other windows
    c.train.optimizer = "adamw"  # "adamw" or "muon"
    c.train.adam_rate = 0.0006
    c.train.warmup = 10
    c.train.decay = 160
    c.train.rows_at_once = 1
    c.train.save_every = 20
    c.notes = ""
    return c
