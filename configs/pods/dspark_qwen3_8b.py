"""DSpark's block drafter for Qwen3-8B on four v5p: training, and decoding.

Cheng et al., *DSpark*, 2026, arXiv 2607.05147: 5 layers, 7 slots, a head of rank 256,
512 anchors a row, text that the target wrote. The conditioned tree beside the chain
has 20 nodes, of which 16 texts fit into the tokens that a call takes for nothing.

Command:   python -m experiments.run --config=configs/pods/dspark_qwen3_8b.py
               --workdir=runs/dspark_qwen3_8b
Preflight: python -m experiments.preflight
               --config=configs/pods/dspark_qwen3_8b.py --topology=v5p:2x2x1
Figures:   training: 23.1 of a chip's 95 GiB (7.6 target, 3.6 heads and optimiser, 11.9
           temporaries), links 65 of 246 ms; decoding of 16 texts: 15.1 with chains of
           seven, 16.7 with trees of 20 nodes, prefill 13.9; a text alone at most 365
           tokens/s. experiments/reports/preflight.md
"""

import ml_collections

from configs.heads import dspark


def get_config() -> ml_collections.ConfigDict:
    c = dspark.get_config("qwen3_8b")
    c.name = "dspark_qwen3_8b"
    c.beside.tree.topology.nodes = 20
    return c
