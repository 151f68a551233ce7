"""The same weights through decodax and through HF transformers, in one process.

python -m experiments.run --config=configs/studies/hf_transformers.py
--workdir=runs/peers

Needs the extra `peers` (torch, transformers). Random weights in the Llama layout: time
per token does not depend on the text, and both write the same greedy tokens. Batch 1,
float32, both frameworks with every core.

Hardware: two cores and 4 GiB of memory; some five minutes.
Expected: plain decoding at least 3 times HF's greedy `generate` at 4M parameters, 2
times at 29M, 1.5 times at 98M; MBU of 0.6 or more at 98M; a block of 8 at most 2.3
plain calls at 98M, 3 at 29M and 4M; draft, verification and commit at most a tenth of a
round for the training-free drafters at 29M.
"""

import ml_collections


def shape(
    width: int, layers: int, heads: int, groups: int, ff: int, vocab: int
) -> dict:
    return {
        "d_model": width,
        "n_layers": layers,
        "n_heads": heads,
        "n_kv_heads": groups,
        "d_ff": ff,
        "vocab_size": vocab,
    }


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "hf_transformers"
    # Name -> the shape of a target.
    config.sizes = {
        "4M": shape(256, 4, 8, 2, 704, 4096),
        "29M": shape(512, 8, 8, 4, 1408, 10240),
        "98M": shape(768, 12, 12, 4, 2048, 29184),
    }
    config.draft = shape(128, 2, 4, 2, 352, 0)  # the vocabulary is the target's
    config.methods = ("prompt_lookup", "copyspec", "token_recycling")
    config.prompts = config.batch = 1
    config.prompt_tokens = 64
    config.max_new_tokens = 64
    config.repeats = 5
    config.seed = 0
    config.widths = (1, 2, 4, 8, 16)
    # Figure -> size -> its aim, beside which the report puts what was measured.
    config.aims = {
        "plain": {"4M": 3.0, "29M": 2.0, "98M": 1.5},
        "mbu": {"98M": 0.6},
        "block_of_8": {"4M": 3.0, "29M": 3.0, "98M": 2.3},
        "draft_share": {"29M": 0.1},
    }
    return config
