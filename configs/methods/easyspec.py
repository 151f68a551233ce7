"""EasySpec: the draft's attention layers in parallel, its cache made exact each round.

Wu, Gao, Li, Wu, *EasySpec: Layer-Parallel Speculative Decoding for Efficient
Multi-GPU Utilization*, 2025, arXiv 2502.02493. One device computes the same drafts; a
faster, layer-parallel call needs as many devices as a group has layers. Groups leave
out the first and the last layer: `tiny-draft`, of three layers, has groups of one and
drafts as the plain chain does.

python -m experiments.generate --model=tiny --draft=tiny-draft --method=easyspec \\
    --prompt="def main("

Paper:   up to 4.17x, with several devices for the draft.
Here:    a draft of eight layers in groups of four: 2.34x for the chain's 1.96x,
         modelled at T = 0.8 with a draft call of 0.2 target calls. On Spec-Bench's
         questions, with a draft of three layers, it is the chain.
Report:  experiments/reports/easyspec.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "drafter": "drafters/easyspec",
        "topology": {"name": "topologies/chain", "length": 5},
    }
    config.drafts = {"draft": "tiny-draft"}
    return config
