"""A judge of drafts that differ from the target's tokens, beside the divergence rule.

Bachmann et al., *Judge Decoding: Faster Speculative Sampling Requires Going Beyond
Model Alignment*, 2025, arXiv 2501.19309. Mismatches of a draft model are labelled by
decoding on with the target (as AutoJudge does; the paper's data are labelled by hand).
A linear judge is fitted to them. The judge, one fitted to shuffled labels, and the KL
rule decode at several thresholds. Their tokens per call and the target's loss on their
texts are measured. (The rule's drafts are samples; the judges' at temperature 0 are the
draft's best tokens.)

Command:  python -m experiments.run --config=configs/predictors/judge.py
              --workdir=runs/judge
Hardware: 2 CPU cores.
At scale: no recipe. The paper's: Llama 3.1 8B drafts for 405B.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `judge`."""
    c = ml_collections.ConfigDict()
    c.stage = "judge"
    c.name = "judge"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"  # the draft model
    c.reject = 1.0  # weight of a harmful mismatch
    c.decay = 0.01  # weight decay of the judge

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.data.directory = ""  # empty: workdir/data
    c.data.prompts = 128  # of the training split
    c.data.held = 48  # prompts of the held-out split
    c.data.prompt_tokens = 64  # of each
    c.data.new_tokens = 64  # of the reference
    c.data.horizon = 24  # tokens after a mismatch that decide its label
    c.data.most = 8  # most mismatches of a prompt
    c.data.batch = 16  # texts at once

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.temperature = 0.0  # of the decoded texts
    c.evaluate.length = 4  # drafts a round
    c.evaluate.prompts = 24  # held-out prompts decoded
    c.evaluate.new_tokens = 64  # of each text
    c.evaluate.thresholds = (0.9, 0.7, 0.5, 0.3)  # of the judge, one row each
    # Thresholds of the untrained rule, one row each.
    c.evaluate.divergences = (0.05, 0.1, 0.3, 1.0)
    c.export = ""  # a folder for the judge; empty: workdir/export
    return c
