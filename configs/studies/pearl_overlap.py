"""Does PEARL accept more drafts in a row than a chain, and what would two devices give?

Liu et al., *PEARL*, 2025, arXiv 2408.11850, sections 4 and 5: with the same draft its
runs of accepted drafts are longer than a chain's rounds, and rounds take the longer of
the two models' times. `tiny-draft` drafts for `tiny`.

python -m experiments.run --config=configs/studies/pearl_overlap.py
--workdir=runs/parallel

Hardware: one core, five minutes; resumes where it stopped. Times are modelled from
measured calls: the models run one after the other here.
Expected: plain decoding's texts in every row, and `run − round` above 0.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `pearl_overlap`."""
    c = ml_collections.ConfigDict()
    c.stage = "pearl_overlap"
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"  # the draft model
    c.gammas = (2, 4, 6)  # drafts a round; the paper: about the ratio of call times
    c.tasks = ("code", "text")
    c.temperatures = (0.0, 0.8)
    c.prompts = 8  # of each task
    c.batch = 8
    c.prompt_tokens = 128
    c.max_new_tokens = 96
    return c
