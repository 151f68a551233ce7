"""ADED: a tree search over a table of trigrams that follows the text.

Liu, Huang, Cai et al., Adaptive Draft-Verification for Efficient Large Language Model
Decoding, 2024, arXiv 2407.12021.

python -m experiments.generate --model=tiny --method=aded \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/aded"}
    return config
