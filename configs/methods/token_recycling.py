"""Token Recycling: the target's runner-up tokens become later drafts.

Luo et al., *Turning Trash into Treasure: Accelerating Inference of Large Language
Models with Token Recycling*, 2025, arXiv 2408.08696; the paper's tree of 80 nodes.

python -m experiments.generate --model=tiny --method=token_recycling \\
    --prompt="def main("

Paper:   about 2x; 2.73 tokens a call of 7B and 13B, Spec-Bench, greedy.
Here:    2.03 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/token_recycling"}
    return config
