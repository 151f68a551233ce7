"""The shipped draft model `tiny_draft`, which shares the tokenizer of `tiny`.

Command:  python -m experiments.run --config=configs/language_models/tiny_draft.py
              --workdir=runs/tiny_draft
Hardware: 2 CPU cores.
"""

import ml_collections

from configs.language_models import tiny


def get_config() -> ml_collections.ConfigDict:
    """Return `tiny`'s data and schedule with a fifth of the parameters."""
    c = tiny.get_config()
    c.name = "tiny_draft"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_draft.py "
        "--workdir=runs/tiny_draft"
    )
    c.model.d_model = 128
    c.model.n_layers = 3
    c.model.n_heads = 4
    c.model.n_kv_heads = 2
    c.model.d_ff = 320
    c.data.tokenizer = "models/packaged/tiny/tokenizer.json"
    c.data.stages = ((1600, 8, 512), (40, 2, 2048))
    c.train.warmup = 40
    c.train.decay = 600
    c.notes = ""
    return c
