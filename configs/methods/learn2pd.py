"""Learn2PD: the guesses that a trained filter takes for final.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. `configs/predictors/learn2pd.py`
trains the filter.

decoding.generate(lm, prompts, "learn2pd", drafts={"filter": params})

Paper:   up to 22.58x with `eotp`, 57.51x with a cache, on long canvases.
Here:    2.86 calls for 7 tokens of list rules, as right as one a step; an oracle 1.76.
Report:  experiments/reports/parallel_lists.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/learn2pd"],
    }
    config.model = "tiny_diffusion"
    return config
