"""DEL: the target drafts with its first layers, as many as pay best.

Entezari Zarch, Gao, Jiang, Annavaram, DEL: Context-Aware Dynamic Exit Layer for
Efficient Self-Speculative Decoding, 2025, arXiv 2504.05598, section 4. The paper's
models were trained to exit early (LayerSkip); others draft badly.

python -m experiments.generate --model=tiny --method=del_exit \\
    --prompt="def main("
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/del_exit"}
    return config
