"""LLaDA's sampler: the most confident position of a block, one a forward.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, in blocks of 32.
`plain` on a diffusion model is this recipe.

python -m experiments.generate --model=tiny_diffusion --method=llada \\
    --prompt="def main("

Paper:   the reference: it is best with as many forwards as tokens.
Here:    one token a call, 128 nodes a token, on code of 64 tokens.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/llada"],
    }
    config.model = "tiny_diffusion"
    return config
