"""DySpec: the tree grows where the draft model expects acceptance.

Xiong et al., DySpec, 2024, arXiv 2410.11744; its budget of 64 nodes, in eight levels.
The verifier is the default one; the paper's is `verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=dyspec --prompt="def main("

Expected: plain decoding's texts, whatever the temperature. Hardware: any.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {"drafter": "drafters/model", "topology": "topologies/dyspec"}
    config.drafts = {"draft": "tiny-draft"}
    return config
