"""ADED: a tree search over a table of trigrams that follows the text.

Liu, Lei, Zhang, Xu, *Adaptive Draft-Verification for Efficient Large Language Model
Decoding*, 2025, arXiv 2407.12021.

python -m experiments.generate --model=tiny --method=aded \\
    --prompt="def main("

Paper:   faster as its table learns; no tokens a call in the paper.
Here:    1.39 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/aded"}
    return config
