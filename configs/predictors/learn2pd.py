"""A filter that decides which guesses of a diffusion model are final.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. The model decodes prompts of the
data, one token a forward; an oracle that knows those texts decodes them again and logs
confidences. A filter of two layers is fitted, and decodes beside confidence thresholds.

Command:  python -m experiments.run --config=configs/predictors/learn2pd.py
              --workdir=runs/learn2pd
Hardware: 2 CPU cores.
At scale: no recipe. The authors': LLaDA-8B-Instruct on prompts of FLAN.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `unmask_filter`."""
    c = ml_collections.ConfigDict()
    c.stage = "unmask_filter"
    c.name = "learn2pd"  # of the run, in reports
    c.seed = 0
    c.model = "tiny_diffusion"
    c.block = 32  # positions that a filter sees
    c.hidden = 32  # numbers between its layers
    c.rate = 0.003  # learning rate
    c.steps = 4000  # updates, each on all cases

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.data.directory = ""  # empty: workdir/data
    c.data.prompts = 256  # of the training split
    c.data.held = 64  # prompts of the held-out split
    c.data.prompt_tokens = 64  # of each
    c.data.new_tokens = 64  # of a text
    c.data.batch = 16  # texts at once

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.prompts = 24  # held-out prompts decoded
    c.evaluate.new_tokens = 64  # of each text
    # Of the filter, one row each.
    c.evaluate.thresholds = (0.96, 0.9, 0.8, 0.6)
    # Thresholds of the untrained rule, one row each.
    c.evaluate.confidences = (0.95, 0.9, 0.8, 0.6)
    c.export = ""  # a folder for the filter; empty: workdir/export
    return c
