"""DEL: the target drafts with its first layers, their number chosen per round.

Entezari Zarch, Gao, Jiang, Annavaram, *DEL: Context-Aware Dynamic Exit Layer for
Efficient Self-Speculative Decoding*, 2025, arXiv 2504.05598, section 4. The paper's
models were trained to exit early (LayerSkip); others draft badly.

python -m experiments.generate --model=tiny --method=del_exit \\
    --prompt="def main("

Paper:   2.16 to 2.50x on models trained to exit early.
Here:    0.13x measured, mean of six categories of Spec-Bench, T = 0.8; 0.96x by its own
         count of layers, greedily on code; on a model that was not.
Report:  experiments/reports/exits.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/del_exit"}
    return config
