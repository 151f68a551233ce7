"""A chain that ends where the draft model is no longer sure.

Zhang et al., Draft & Verify, 2023, arXiv 2309.08168 (draft-exiting); at most twelve
drafts. The paper drafts with a part of the target; here a draft model does.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=confidence_stop --prompt="def main("

Expected: EXPECTED
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.method = {
        "drafter": "drafters/model",
        "topology": "topologies/confidence_stop",
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
