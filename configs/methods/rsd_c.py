"""RSD-C: two children of every node, drawn without replacement.

Jeon et al., *Recursive Speculative Decoding*, 2024, arXiv 2402.14160; 30 drafts in four
levels. The verifier is the default one; the paper's is
`verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=rsd_c --prompt="def main("

Expected: 3.61 tokens a call (95 %: 3.32 to 3.88) on held-out code at T = 0.8, 4 prompts
of 64 new tokens; two cores.

Paper:   above i.i.d. trees at equal budget, below RSD-S.
Here:    3.17 (2.89–3.47) tokens a call, 30 drafts, code, T = 0.8, recursive
         rejection.
Report:  experiments/reports/budget.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/model", "topology": "topologies/rsd_c"}
    config.drafts = {"draft": "tiny-draft"}
    return config
