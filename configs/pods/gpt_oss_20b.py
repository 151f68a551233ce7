"""EAGLE-3's draft layer for gpt-oss-20b on v5e-16: training, and tree decoding.

A mixture of 32 experts, four of which a token visits, with attention sinks and windows
of 128 tokens in every other layer (arXiv 2508.10925). Li et al., *EAGLE-3*, 2025, arXiv
2503.01840.

Command:   python -m experiments.run --config=configs/pods/gpt_oss_20b.py
               --workdir=runs/gpt_oss_20b
Preflight: python -m experiments.preflight --config=configs/pods/gpt_oss_20b.py
               --topology=v5e:4x4
"""

import ml_collections

from configs.heads import eagle3


def get_config() -> ml_collections.ConfigDict:
    c = eagle3.get_config("gpt_oss_20b")
    c.name = "gpt_oss_20b"
    c.method.topology.nodes = 30
    return c
