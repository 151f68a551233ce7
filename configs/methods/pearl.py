"""PEARL: the next block is drafted while the last one is verified.

Liu, Li, Lv, Liu, Zhu, Hu, Sun, *PEARL: Parallel Speculative Decoding with Adaptive
Draft Length*, 2025, arXiv 2408.11850, section 4.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=pearl \\
    --prompt="def main("

Paper:   3.79x, and 1.52x of speculative decoding, on two devices.
Here:    1.50 tokens a call, mean of six categories of Spec-Bench, T = 0.8; the chain
         2.23.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": {"name": "drafters/pearl", "gamma": 4}}
    config.drafts = {"draft": "tiny-draft"}
    return config
