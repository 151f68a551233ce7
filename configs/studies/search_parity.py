"""Do beams give the texts of HF transformers, and what does a round cost?

python -m experiments.run --config=configs/studies/search_parity.py
--workdir=runs/search_parity

Hardware: a CPU, half an hour. Expected: all texts the same, and a tree's round costs at
most that of rows whose caches are gathered.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `search_parity`."""
    c = ml_collections.ConfigDict()
    c.stage = "search_parity"
    c.seed = 0
    c.model = "tiny"
    c.goldens = "tests/golden/search_beams.npz"  # HF's texts
    c.every = 1  # compare every so many-th case
    c.line = 279  # the token that ends texts too, in some cases
    # (K, prompt tokens, prompts, rounds) of a measurement.
    c.cells = (
        (4, 256, 4, 32),
        (4, 1536, 2, 32),
        (4, 256, 2, 256),
        (4, 1536, 2, 256),
        (8, 256, 2, 32),
        (8, 256, 2, 256),
    )
    c.repeats = 5
    return c
