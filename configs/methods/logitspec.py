"""LogitSpec: the last logits guess the token after the next; all guesses are looked up.

Liu, Lv, Li, Gao, Sun, *LogitSpec*, 2025, arXiv 2507.01449; 64 nodes, a first branch of
20 tokens.

python -m experiments.generate --model=tiny --method=logitspec --prompt="def main("

Paper:   up to 2.61x, 3.28 tokens a call.
Here:    2.90 tokens a call on held-out code, T = 0.8.
Report:  experiments/reports/logitspec.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/logitspec"}
    return config
