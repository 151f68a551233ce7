"""A draft model drafts a chain of five tokens.

Leviathan, Kalman, Matias, Fast Inference from Transformers via Speculative Decoding,
2023, arXiv 2211.17192. The verifier is the default one; the paper's is
`verifiers/rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=model_chain \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {
        "drafter": "drafters/model",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
