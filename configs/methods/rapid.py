"""RAPID: a draft model that reads only the parts relevant to the prompt's end.

Chen, Feng, Ni, Li, Shieh, *Long-Context Inference with Retrieval-Augmented
Speculative Decoding*, 2025, arXiv 2502.20330; its exact form (eta = 0). The paper
drafts with the target's own weights (`--draft=tiny`).

python -m experiments.generate --model=tiny --draft=tiny-draft --method=rapid \\
    --prompt="def main("

Paper:   over 2x beyond 32K tokens of prompt.
Here:    not measured in a report.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/rapid",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
