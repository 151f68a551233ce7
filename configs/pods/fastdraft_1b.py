"""A draft of 1.2 B parameters for Llama-3-8B by FastDraft, on v5e-256.

Zafrir et al., *FastDraft: How to Train Your Draft*, 2024, arXiv 2411.11055: the recipe
of configs/draft_models/fastdraft.py with the paper's five billion tokens of
pre-training. The draft has the shape of Llama-3.2-1B (the paper's for Llama 3.1 8B: 150
M). Every eight chips hold a copy of both models, in training and in decoding (64 texts
of 8,192 tokens, two beside each copy).

Command:   python -m experiments.run --config=configs/pods/fastdraft_1b.py
               --workdir=runs/fastdraft_1b
Preflight: python -m experiments.preflight
               --config=configs/pods/fastdraft_1b.py --topology=v5e:16x16
Figures:   raw text: 5.1 of a chip's 16 GiB (0.6 weights, 1.2 optimiser, 3.4
           temporaries); the target's text, with the target beside it: 8.2; decoding:
           3.0 (1.9 target, 0.3 draft, 0.3 the target's cache, 0.5 temporaries), a text
           alone without drafts at most 436 tokens/s.
           experiments/reports/preflight.md
"""

import ml_collections

from configs.base import targets
from configs.draft_models import fastdraft


def get_config() -> ml_collections.ConfigDict:
    c = fastdraft.get_config()
    c.name = "fastdraft_1b"
    c.model = "Meta-Llama-3-8B-Instruct"  # a directory in HF layout
    c.architecture = ml_collections.ConfigDict(targets.LLAMA3_8B)
    c.mesh = "data=32,tensor=8"
    c.draft.update(d_model=2048, n_layers=16, n_heads=32, n_kv_heads=8, d_ff=8192)
    c.draft.rope_theta = 500000.0

    c.data.update(source="documents", batch=256, window=2047)
    c.data.pretraining_tokens = 5_000_000_000
    c.data.tokens = 268_000_000  # the target's own text, once

    # Plain decoding of no more rows and tokens than the loop below.
    c.distill.update(prompts=524_288, held=256, prompt_tokens=256, new_tokens=512)
    c.distill.batch = 64

    c.train.update(pretraining_rate=4e-4, rate=1e-4, warmup=500, rows_at_once=32)
    c.train.update(save_every=500, log_every=20, evaluate_every=500)
    c.evaluate.update(prompts=64, prompt_tokens=128, new_tokens=128)

    c.prompts = 64
    c.context = 8192  # of a served text, for experiments.preflight
    c.prompt_tokens = 128
    c.max_new_tokens = 1024
    c.batch = 64
    return c
