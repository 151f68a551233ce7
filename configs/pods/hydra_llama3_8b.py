"""Hydra++ heads for Llama-3-8B on v5e-16: training, and tree decoding.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, section 4.
A step has 16 rows, the paper's 32, so that there are twice its steps.

Tree:      30 nodes by the measured hits, so that the 8 rows beside a copy of the
           weights verify 240 tokens, of which 241 cost no more than one. Medusa's, 64
           nodes, is --config.tree_nodes=0.
Command:   python -m experiments.run --config=configs/pods/hydra_llama3_8b.py
               --workdir=runs/hydra_llama3_8b
Preflight: python -m experiments.preflight
               --config=configs/pods/hydra_llama3_8b.py --topology=v5e:4x4
Figures:   training: 9.2 of a chip's 16 GiB (1.9 target, 2.0 heads and optimiser, 5.4
           temporaries); decoding of 16 texts of 8,192 tokens, with 30 nodes: 3.7 (1.9
           weights, 1.0 cache, 0.7 heads, 0.1 temporaries), two sums a layer; a text
           alone at most 436 tokens/s.
           Training on one v5p (--topology=v5p:1 --only=train): 90.7 of 95 GiB.
           experiments/reports/preflight.md
"""

import ml_collections

from configs.base import targets
from configs.heads import hydra_pp


def get_config() -> ml_collections.ConfigDict:
    c = hydra_pp.get_config("llama3_8b")
    c.name = "hydra_llama3_8b"
    c.data.batch = 16
    c.tree_nodes = 30
    c.method.topology.choices = targets.MEDUSA_TREE
    return c
