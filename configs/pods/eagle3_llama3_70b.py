"""EAGLE-3's draft layer for Llama-3.1-70B on v5p-64 (32 chips): training, decoding.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840. Decoding: 32 texts of 32,768 tokens.

Command:   python -m experiments.run --config=configs/pods/eagle3_llama3_70b.py
               --workdir=runs/eagle3_llama3_70b
Preflight: python -m experiments.preflight
               --config=configs/pods/eagle3_llama3_70b.py --topology=v5p:2x4x4
Figures:   experiments/reports/preflight.md
"""

import ml_collections

from configs.pods import shared


def get_config() -> ml_collections.ConfigDict:
    c = shared.eagle3(shared.llama3_70b())
    c.name = "eagle3_llama3_70b"
    return c
