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
    c.prompts = 8  # of beams in layouts of the cache, and with drafts
    c.prompt_tokens = 128  # of each, with drafts
    c.layouts = ("paged", "int8", "int4")  # layouts beside the dense one
    c.layout_width = 4  # beams in them
    c.layout_prompt = 512  # tokens of a prompt in them; 256 are kept as they are
    c.layout_tokens = 48  # tokens of a text in them
    c.widths = (1, 2, 4, 8)  # beams with drafts
    c.draft_tokens = 48  # tokens of a text with drafts
    c.draft_models = ml_collections.ConfigDict()
    c.draft_models.draft = "tiny-draft"  # for drafters that need a model
    # Drafters by their name in the table.
    c.drafts = {
        "tiny-draft, 2": {"name": "drafters/lane_model", "m": 2},
        "tiny-draft, 8": {"name": "drafters/lane_model", "m": 8},
        "tiny-draft, 4 on 3 levels": {
            "name": "drafters/lane_model",
            "m": 4,
            "depth": 3,
        },
        "recycled, 8": {
            "name": "drafters/token_recycling",
            "choices": tuple((i,) for i in range(8)),
        },
        "prompt lookup, 4": {"name": "drafters/prompt_lookup", "k": 4},
    }
    return c
