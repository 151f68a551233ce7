"""dParallel: every position whose law has less than 0.5 nats of entropy.

Chen et al., *dParallel: Learnable Parallel Decoding for dLLMs*, 2025, arXiv 2509.26488.
Weights that its objective did not train are less certain.

python -m experiments.generate --model=tiny_diffusion --method=dparallel \\
    --prompt="def main("

Paper:   256 -> 30 forwards on GSM8K, 24 on MBPP, after its training.
Here:    1.98 calls for 7 tokens of list rules, 0.636 of shuffles right; untrained 2.40
         and 0.984.
Report:  experiments/reports/parallel_lists.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/dparallel"],
    }
    config.model = "tiny_diffusion"
    return config
