"""Lookahead decoding: n-grams from Jacobi iteration on a window of the future.

Fu, Bailis, Stoica, Zhang, *Break the Sequential Dependency of LLM Inference Using
Lookahead Decoding*, 2024, arXiv 2402.02057; N, W, G = 5, 7, 7.

python -m experiments.generate --model=tiny --method=lookahead \\
    --prompt="def main("

Paper:   1.5 to 2.3x; 1.64 tokens a call of a 7B model, Spec-Bench, greedy.
Here:    1.54 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/lookahead"}
    return config
