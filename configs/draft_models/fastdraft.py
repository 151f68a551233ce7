"""A small draft from random weights: pre-training, then the target's own text.

Zafrir et al., *FastDraft: How to Train Your Draft*, 2024, arXiv 2411.11055: a shrunken
copy of the target's family is pre-trained on raw text, then fine-tuned on the target's
own text; the paper's continued pre-training on code, between the two, is left out.
Variants, as in the paper: cross-entropy alone, and cross-entropy and KL by
halves. Three drafts a round, as in the paper.

Command:  python -m experiments.run --config=configs/draft_models/fastdraft.py
              --workdir=runs/fastdraft
Hardware: 2 CPU cores.
At scale: configs/pods/fastdraft_1b.py.
"""

import ml_collections

from configs.draft_models import direct_alignment


def get_config() -> ml_collections.ConfigDict:
    c = direct_alignment.get_config()
    c.name = "fastdraft"
    c.draft.start = ""
    c.draft.d_model = 96
    c.draft.n_layers = 2
    c.draft.d_ff = 256
    c.data.pretraining_tokens = 1_000_000
    c.variants = ml_collections.ConfigDict()
    c.variants.ce = {"label": 1.0, "soft": 0.0}
    c.variants.half_kl = {"label": 0.5, "soft": 0.5, "loss": "kl"}
    c.directions = (("ce", "before"), ("ce", "half_kl"))
    c.train.rate = 0.001
    c.evaluate.length = 3
    return c
