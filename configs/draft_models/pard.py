"""PARD: `tiny-draft` adapted to guess several tokens in one pass, behind masks.

An et al., *PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model
Adaptation*, 2025, arXiv 2504.18583: K = 8 in training and 12 in decoding, 0.7 of a
depth's places kept, at least 0.2, cross-entropy with text of the targets. `ce` is the
same draft on the same text, trained and decoded token by token. Chains of four tokens
for both: `tiny` accepts no more of a longer one.

The draft reads `<|endoftext|>` for an unknown token: no text goes on behind it.

Command:  python -m experiments.run --config=configs/draft_models/pard.py
              --workdir=runs/pard
Hardware: 2 CPU cores.
At scale: no recipe. The paper's: Llama 3.2 1B for Llama 3.1 8B, 3e-5, four epochs.
"""

import ml_collections

from configs.draft_models import direct_alignment

MASK = 0  # <|endoftext|>


def get_config() -> ml_collections.ConfigDict:
    c = direct_alignment.get_config()
    c.name = "pard"
    c.variants = ml_collections.ConfigDict()
    c.variants.pard = {"objective": "pard", "mask": MASK, "depths": 8}
    c.variants.ce = {"label": 1.0, "soft": 0.0}
    # The drafter of each variant that needs another than `drafter`.
    c.drafters = ml_collections.ConfigDict()
    c.drafters.pard = {"name": "drafters/pard", "mask": MASK}
    c.directions = (("pard", "before"), ("pard", "ce"), ("ce", "before"))
    return c
