"""Plain decoding: one token a call, the baseline of every speed-up.

python -m experiments.generate --model=tiny --method=plain \\
    --prompt="def main("

Paper:   the baseline.
Here:    1.00 token a call, by definition.
Report:  experiments/reports/quickstart.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": None}
    return config
