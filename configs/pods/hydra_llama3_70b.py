"""Hydra++ heads for Llama-3.1-70B on v5p-64 (32 chips): training, and tree decoding.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 4.
A step has 16 rows, the paper's 32, so that there are twice its steps.

Tree:      20 nodes by the measured hits, so that the 8 rows beside a copy of the
           weights verify 160 tokens, of which 166 cost no more than one. Medusa's, 64
           nodes, is --config.tree_nodes=0.
Command:   python -m experiments.run --config=configs/pods/hydra_llama3_70b.py
               --workdir=runs/hydra_llama3_70b
Preflight: python -m experiments.preflight
               --config=configs/pods/hydra_llama3_70b.py --topology=v5p:2x4x4
Figures:   training: 27.2 of a chip's 95 GiB (16.4 target, 2.5 heads and optimiser, 8.3
           temporaries); decoding of 32 texts of 32,768 tokens, eight beside a copy of
           the weights, with 20 nodes: 28.6 (16.4 weights, 10.0 cache, 1.7 heads, 0.4
           temporaries), its prefill 28.9; a text alone at most 159 tokens/s.
           experiments/reports/preflight.md
"""

import ml_collections

from configs.base import targets
from configs.heads import hydra_pp


def get_config() -> ml_collections.ConfigDict:
    c = hydra_pp.get_config("llama3_70b")
    c.name = "hydra_llama3_70b"
    c.data.batch = 16
    c.tree_nodes = 20
    c.method.topology.choices = targets.MEDUSA_TREE
    return c
