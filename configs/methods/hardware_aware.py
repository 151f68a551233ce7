"""The block width that pays on this machine, chosen round by round.

Chen et al., *Sequoia*, 2024, arXiv 2402.12374 (its hardware-aware optimizer). `times`
are milliseconds of a call of `tiny` by width and `draft_ms` those of `tiny-draft`, as
configs/quickstart.py measured them on two cores: put in your own.

python -m experiments.generate --model=tiny --draft=tiny-draft \\
    --method=hardware_aware --prompt="def main("

Expected: plain decoding's texts, whatever the temperature. Hardware: any.

Paper:   no figure of the optimizer alone.
Here:    not measured in a report.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/model",
        "topology": {
            "name": "topologies/hardware_aware",
            "times": ((1, 0.84), (2, 1.23), (4, 1.35), (8, 1.62), (16, 2.67)),
            "draft_ms": 0.16,
        },
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
