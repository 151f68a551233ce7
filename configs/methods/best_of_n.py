"""Best of N: of 16 samples the one of the highest mean log-probability.

Stiennon et al., *Learning to Summarize from Human Feedback*, 2020, arXiv 2009.01325.

python -m experiments.generate --model=tiny --method=best_of_n --temperature=0.8 \\
    --prompt="def main("

Any other reward takes this one's place: `generate(method="best_of_n", reward=...)`.

Paper:   summaries by a reward model; figure of this reward not found.
Here:    not measured.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"search": "search/best_of_n", "rewards": ["rewards/likelihood"]}
    return config
