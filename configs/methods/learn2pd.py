"""Learn2PD: the guesses that a trained filter takes for final.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. `configs/predictors/learn2pd.py`
trains the filter.

decoding.generate(lm, prompts, "learn2pd", drafts={"filter": params})

Paper:   up to 22.58x with `eotp`, 57.51x with a cache, on long canvases.
Here:    not measured yet, by configs/studies/diffusion.py.
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
