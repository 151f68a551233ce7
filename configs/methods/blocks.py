"""LLaDA without blocks: the whole canvas is one.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992. `size` is the
length of a block.

python -m experiments.generate --model=tiny_diffusion --method=blocks \\
    --prompt="def main("

Paper:   GSM8K of LLaDA-8B-Instruct: 69.4 % in one block of 512, 78.6 % in blocks of 8.
Here:    0.81 of a greedy text of code as in blocks of 32; calls are equal.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/llada", "diffusion/blocks"],
    }
    config.model = "tiny_diffusion"
    return config
