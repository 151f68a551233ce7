"""Dream's sampler: no blocks, the positions of least entropy first.

Ye et al., *Dream 7B: Diffusion Large Language Models*, 2025, arXiv 2508.15487, with as
many levels as tokens.

python -m experiments.generate --model=tiny_diffusion --method=dream \\
    --prompt="def main("

Paper:   the sampler of Dream-7B; no speed is claimed.
Here:    1.02 tokens a call on code, T = 0.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/dream"],
    }
    config.model = "tiny_diffusion"
    return config
