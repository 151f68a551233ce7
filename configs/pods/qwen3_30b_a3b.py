"""DFlash's block drafter for Qwen3-30B-A3B on v5e-16: training, and decoding.

A mixture (arXiv 2505.09388) of 128 experts, eight of which a token visits: a call of n
tokens reads up to 128 (1 - (1 - 1 / 16)^n) of them a layer, and a draft must win more
than it adds. Chen, Liang, Liu, *DFlash*, 2026, arXiv 2602.06036.

Command:   python -m experiments.run --config=configs/pods/qwen3_30b_a3b.py
               --workdir=runs/qwen3_30b_a3b
Preflight: python -m experiments.preflight --config=configs/pods/qwen3_30b_a3b.py
               --topology=v5e:4x4
"""

import ml_collections

from configs.heads import dflash


def get_config() -> ml_collections.ConfigDict:
    c = dflash.get_config("qwen3_30b_a3b")
    c.name = "qwen3_30b_a3b"
    c.beside.tree.topology.nodes = 30  # with 8 rows beside a copy: below 241 tokens
    return c
