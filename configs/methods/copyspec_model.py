"""CopySpec, and a draft model's chain of five where the text repeats nothing.

Dumitru, Sharma, Zhu, Alvarez, CopySpec, 2025, arXiv 2502.08923, section 3.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=copyspec_model --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {
        "drafter": "drafters/copyspec_model",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
