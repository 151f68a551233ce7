"""CopySpec: copy the block that followed the last three tokens before.

Dumitru, Sharma, Zhu, Alvarez, CopySpec, 2025, arXiv 2502.08923.

python -m experiments.generate --model=tiny --method=copyspec \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/copyspec"}
    return config
