"""Speculative Jacobi decoding: the last round's laws draft the next round's window.

Teng, Shi, Liu, Ning, Dai, Wang, Li, Liu, *Accelerating Auto-regressive Text-to-Image
Generation with Training-free Speculative Jacobi Decoding*, 2025, arXiv 2410.01699.
The verifier is the default one; the paper's is `verifiers/rejection`.

python -m experiments.generate --model=tiny --method=speculative_jacobi \\
    --prompt="def main("

Paper:   about half the steps, of images.
Here:    1.10 tokens a call, mean of six categories of Spec-Bench, T = 0.8: of text.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/speculative_jacobi"}
    return config
