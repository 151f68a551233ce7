"""PEARL: the next block is drafted while the last one is verified.

Liu, Li, Lv, Liu, Li, Hu, Sun, PEARL: Parallel Speculative Decoding with Adaptive Draft
Length, 2024, arXiv 2408.11850, section 4.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=pearl \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": {"name": "drafters/pearl", "gamma": 4}}
    config.drafts = {"draft": "tiny-draft"}
    return config
