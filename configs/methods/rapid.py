"""RAPID: a draft model that reads only the parts relevant to the prompt's end.

Chen, Feng, Ni, Li, Shieh, *Long-Context Inference with Retrieval-Augmented
Speculative Decoding*, 2025, arXiv 2502.20330; its exact form (eta = 0). As in its code
drafts are at most 10 and end below a confidence of 0.1 (there the drawn token's own
probability, here the law's largest one). The paper drafts with the
target's own weights (`--draft=tiny`). The verifier is the default one; the paper's,
with eta > 0, is `verifiers/rapid` (experiments/reports/rapid.md).

python -m experiments.generate --model=tiny --draft=tiny-draft --method=rapid \\
    --prompt="def main("

Paper:   over 2x beyond 32K tokens of prompt.
Here:    2.33 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/rapid",
        "topology": {
            "name": "topologies/confidence_stop",
            "length": 10,
            "threshold": 0.1,
        },
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
