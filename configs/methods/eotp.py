"""End-of-text prediction: the canvas ends where an end of text is guessed.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. The rule beside it is `llada`'s.

python -m experiments.generate --model=tiny_diffusion --method=eotp \\
    --prompt="def main("

Paper:   most of Learn2PD's 22.58x on canvases of 1,024 tokens.
Here:    8.48 calls of 14 for 7 tokens of list rules, 0.027 ± 0.023 less right.
Report:  experiments/reports/parallel_lists.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/llada", "diffusion/eotp"],
    }
    config.model = "tiny_diffusion"
    return config
