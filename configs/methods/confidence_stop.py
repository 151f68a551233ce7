"""A chain that ends where the draft model's confidence is low.

Zhang et al., *Draft & Verify*, 2024, arXiv 2309.08168 (draft-exiting); at most twelve
drafts. The paper drafts with a part of the target; here a draft model does.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=confidence_stop --prompt="def main("

Expected: 3.12 tokens a call (95 %: 2.61 to 3.88), with 2.8 drafts of 12 verified, on
held-out code at T = 0.8, 4 prompts of 64 new tokens; two cores.

Paper:   none for a draft model: the paper drafts with a part of the target.
Here:    not measured in a report.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/model",
        "topology": "topologies/confidence_stop",
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
