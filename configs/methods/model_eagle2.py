"""EAGLE-2's tree, grown by a draft model: expand the likely, keep the best.

Li, Wei, Zhang, Zhang, *EAGLE-2*, 2024, arXiv 2406.16858; 60 nodes, six levels, ten
children. The paper drafts with a head on the target; here a draft model does.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=model_eagle2 --prompt="def main("

Expected: plain decoding's texts, whatever the temperature. Hardware: any.

Paper:   its figures are of a head; see configs/heads/eagle2.py.
Here:    3.78 (3.47–4.17) tokens a call, 64 drafts, code, T = 0.8, recursive
         rejection.
Report:  experiments/reports/budget.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/model", "topology": "topologies/eagle2"}
    config.drafts = {"draft": "tiny-draft"}
    return config
