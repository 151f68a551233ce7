"""Fast-dLLM's dual cache: all keys but a block's are kept while it is written.

Wu et al., *Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache
and Parallel Decoding*, 2025, arXiv 2505.22618, with its threshold.

python -m experiments.generate --model=tiny_diffusion --method=dual \\
    --prompt="def main("

Paper:   up to 27.6x on 1,024 tokens behind eight examples.
Here:    0.29 of the nodes, 0.788 of a greedy text as without a cache.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/fast_dllm"],
        "policy": "caches/dual",
    }
    config.model = "tiny_diffusion"
    return config
