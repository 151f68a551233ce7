"""SuffixDecoding, and a draft model's chain of five where its score is below five.

Oliaro, Jia, Campos, Qiao, *SuffixDecoding*, 2025, arXiv 2411.04975; the hybrid of the
authors' code.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=suffix_model \\
    --prompt="def main("

Paper:   up to 5.3x on agents' tasks, of SuffixDecoding alone.
Here:    2.41 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/suffix_model",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
