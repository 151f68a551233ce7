"""Measured and theoretical acceptance of lossless verifiers on a real pair of models.

python -m experiments.run --config=configs/studies/verifier_acceptance.py
--workdir=runs/sampling_laws

Hardware: two cores, some ten minutes; resumes where it stopped.
Expected: every row within four standard errors of its closed form; no row above the
optimal-transport bound; several drafts above one; without replacement above with.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "verifier_acceptance"
    config.model = "tiny"
    config.draft = "tiny-draft"  # the draft model
    config.seed = 0
    config.tasks = ("code", "text")  # whose prompts are the texts
    config.prompts = 4  # of each task
    config.prompt_tokens = 128
    config.pairs = 32  # places of the texts, each with a law of both models
    config.samples = 256  # verifications at a place
    config.temperatures = (0.8, 1.0)
    config.drafts_a_node = (1, 2, 4)  # siblings that are drawn
    config.verifiers = ()  # (): all whose guarantee is LAW
    return config
