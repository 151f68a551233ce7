"""DySpec: the tree grows where the draft model expects acceptance.

Xiong et al., *DySpec*, 2024, arXiv 2410.11744; its budget of 64 nodes, in eight levels.
The verifier is the default one; the paper's is `verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=dyspec --prompt="def main("

Expected: plain decoding's texts, whatever the temperature. Hardware: any.

Paper:   3.71 tokens a call, 68M drafts for 7B, 64 nodes, C4, T = 0.6.
Here:    4.06 (3.59–4.61) tokens a call, 64 drafts, code, T = 0.8, recursive
         rejection.
Report:  experiments/reports/budget.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/model", "topology": "topologies/dyspec"}
    config.drafts = {"draft": "tiny-draft"}
    return config
