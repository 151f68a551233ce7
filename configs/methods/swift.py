"""SWIFT: the target drafts without some of its sublayers, chosen on the fly.

Xia, Li, Zhang, Du, Li, *SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference
Acceleration*, 2025, arXiv 2410.06916, section 4.

python -m experiments.generate --model=tiny --method=swift \\
    --prompt="def main("

Paper:   1.3 to 1.6x.
Here:    0.15x measured, mean of six categories of Spec-Bench, T = 0.8; 1.28x modelled,
         greedily on code, if its block of 64 nodes costs one call.
Report:  experiments/reports/exits.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/swift"}
    return config
