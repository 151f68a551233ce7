"""dKV-Cache-Greedy: a step runs what is committed, and a window beside it.

Ma et al., *dKV-Cache: The Cache for Diffusion Language Models*, 2025, arXiv 2505.15781,
its greedy form, with the official repository's example: renewed every 2 steps, 4 masks
beside each position. Its order is random, since it must be known before the forward.

python -m experiments.generate --model=tiny_diffusion --method=dkv_greedy \\
    --prompt="def main("

Paper:   faster than `dkv`, with more loss.
Here:    not measured yet.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": [{"name": "diffusion/llada", "order": "random"}],
        "policy": {"name": "caches/dkv", "refresh": 2, "window": 4},
    }
    config.model = "tiny_diffusion"
    return config
