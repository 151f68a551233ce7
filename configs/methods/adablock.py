"""AdaBlock: blocks end with a line where the model is sure of its end.

Lu et al., *AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive Block
Size*, 2025, arXiv 2509.26432, over Fast-dLLM's threshold and dual cache.

python -m experiments.generate --model=tiny_diffusion --method=adablock \\
    --prompt="def main("

Paper:   up to 5.3 % better at the same throughput.
Here:    1.18 tokens a call on code, T = 0, as without it.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/fast_dllm", "diffusion/adablock"],
        "policy": "caches/dual",
    }
    config.model = "tiny_diffusion"
    return config
