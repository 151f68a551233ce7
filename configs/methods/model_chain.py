"""A draft model drafts a chain of five tokens.

Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*,
2023, arXiv 2211.17192. The verifier is the default one; the paper's is
`verifiers/rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=model_chain \\
    --prompt="def main("

Paper:   2 to 3x; 2.28 tokens a call, 68M for 7B, Spec-Bench, greedy.
Here:    2.23 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/model",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
