"""RSD-S: six sequences drawn without replacement by stochastic beam search.

Jeon et al., Recursive Speculative Decoding, 2024, arXiv 2402.14160; 30 drafts in five
levels. The verifier is the default one; the paper's is
`verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=rsd_s --prompt="def main("

Expected: EXPECTED
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/model", "topology": "topologies/rsd_s"}
    config.drafts = {"draft": "tiny-draft"}
    return config
