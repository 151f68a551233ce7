"""EAGLE-3's draft layer for Llama-3.1-70B on v5p-64 (32 chips): training, decoding.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840. Decoding: 32 texts of 32,768 tokens.

Tree:      20 nodes, so that the 8 rows beside a copy of the weights verify 160 tokens,
           of which 166 cost no more than one. EAGLE-2's, 60 nodes, is
           --config.method.topology.nodes=60.
Command:   python -m experiments.run --config=configs/pods/eagle3_llama3_70b.py
               --workdir=runs/eagle3_llama3_70b
Preflight: python -m experiments.preflight
               --config=configs/pods/eagle3_llama3_70b.py --topology=v5p:2x4x4
Figures:   training: 26.2 of a chip's 95 GiB (16.4 target, 0.5 heads and optimiser, 9.3
           temporaries); decoding of 32 texts, with 20 nodes: 27.7 (16.4 weights, 10.0
           cache, 0.3 heads, 0.8 temporaries), its prefill 29.1; a text alone at most
           159 tokens/s.
           experiments/reports/preflight.md
"""

import ml_collections

from configs.heads import eagle3


def get_config() -> ml_collections.ConfigDict:
    c = eagle3.get_config("llama3_70b")
    c.name = "eagle3_llama3_70b"
    c.method.topology.nodes = 20
    return c
