"""RASD: a draft model's tree joined with continuations of equal endings.

Quan, Feng, Hao, Jiang, Zhang, Wang, *RASD: Retrieval-Augmented Speculative Decoding*,
2025, arXiv 2503.03434; pruning and sizes are ours, its full text was not
compared.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=rasd \\
    --prompt="def main("

Paper:   no figure that could be confirmed.
Here:    3.13 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/rasd", "topology": "topologies/static"}
    config.drafts = {"draft": "tiny-draft"}
    return config
