"""The draft model of `tiny_text`: `tiny_draft`'s shape and schedule on its text.

Command:  python -m experiments.run --config=configs/language_models/tiny_text_draft.py
              --workdir=runs/tiny_text_draft --config.data.source=DIRECTORY
Hardware: 2 CPU cores; some ten minutes of them, after
configs/language_models/tiny_text.py.
"""

import ml_collections

from configs.language_models import tiny_draft, tiny_text


def get_config() -> ml_collections.ConfigDict:
    """Return `tiny_text`'s data and tokenizer with a fifth of its parameters."""
    c, small = tiny_text.get_config(), tiny_draft.get_config()
    c.name = "tiny_text_draft"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_text_draft.py "
        "--workdir=runs/tiny_text_draft --config.data.source=DIRECTORY"
    )
    c.model, c.train = small.model, small.train
    c.data.stages = small.data.stages
    c.data.tokenizer = "runs/tiny_text/tokenizer.json"
    return c
