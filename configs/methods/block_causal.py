"""Exact keys, for models that were trained on block-causal attention.

Arriola et al., *Block Diffusion: Interpolating Between Autoregressive and Diffusion
Language Models*, 2025, arXiv 2503.09573, one position a forward, in blocks of the
model's `block_size`.

python -m experiments.generate --model=tiny_diffusion --method=block_causal \\
    --prompt="def main("

Paper:   finished blocks have the keys of an autoregressive model, which never change.
Here:    0.14 of the nodes; other texts, by attention of blocks.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/llada"],
        "policy": "caches/block_causal",
    }
    config.model = "tiny_diffusion"
    return config
