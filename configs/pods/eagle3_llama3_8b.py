"""EAGLE-3's draft layer for Llama-3-8B on v5e-16: training, and tree decoding.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840.

Tree:      30 nodes, so that the 8 rows beside a copy of the weights verify 240 tokens,
           of which 241 cost no more than one. EAGLE-2's, 60 nodes, is
           --config.method.topology.nodes=60.
Command:   python -m experiments.run --config=configs/pods/eagle3_llama3_8b.py
               --workdir=runs/eagle3_llama3_8b
Preflight: python -m experiments.preflight
               --config=configs/pods/eagle3_llama3_8b.py --topology=v5e:4x4
Figures:   training: 5.7 of a chip's 16 GiB (1.9 target, 0.3 heads and optimiser, 3.5
           temporaries); decoding of 16 texts of 8,192 tokens, with 30 nodes: 3.2, its
           prefill 3.4; a text alone at most 436 tokens/s.
           Training on one v5p (--topology=v5p:1 --only=train): 49.6 of 95 GiB.
           experiments/reports/preflight.md
"""

import ml_collections

from configs.heads import eagle3


def get_config() -> ml_collections.ConfigDict:
    c = eagle3.get_config("llama3_8b")
    c.name = "eagle3_llama3_8b"
    c.method.topology.nodes = 30
    return c
