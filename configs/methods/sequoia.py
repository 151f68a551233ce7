"""Sequoia: the static tree that measured acceptance makes best.

Chen et al., *Sequoia*, 2024, arXiv 2402.12374; its budget of 64 nodes. `acceptance` is
that of `tiny-draft` for `tiny` by rank at T = 0.8, as measured by
configs/studies/verifier_acceptance.py: measure your own pair. The verifier
is the default one; the paper's is `verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=sequoia --prompt="def main("

Expected: plain decoding's texts, whatever the temperature. Hardware: any.

Paper:   4.99 tokens a call, 68M drafts for 7B, 64 nodes, C4, greedy
         (as DySpec measured it).
Here:    4.28 (3.89–4.73) tokens a call, 64 drafts, code, T = 0.8, recursive
         rejection.
Report:  experiments/reports/budget.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/model",
        "topology": {
            "name": "topologies/sequoia",
            "acceptance": (0.628, 0.148, 0.060, 0.032),
        },
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
