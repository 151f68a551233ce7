"""A draft model drafts a static tree of sixteen nodes.

Miao et al., *SpecInfer*, 2024, arXiv 2305.09781, with a tree in the manner of Medusa
(Cai et al., 2024, arXiv 2401.10774). The verifier is the default one; the paper's is
`verifiers/recursive_rejection`.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=model_tree \\
    --prompt="def main("

Paper:   none for a fixed tree of this shape.
Here:    2.81 tokens a call, mean of six categories of Spec-Bench, T = 0.8.
Report:  experiments/reports/spec_bench.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/model", "topology": "topologies/static"}
    config.drafts = {"draft": "tiny-draft"}
    return config
