"""One nested draft that is as deep for each token as the token needs (S2D).

Kavehzadeh et al., *S2D: Sorted Speculative Decoding For More Efficient Deployment of
Nested Large Language Models*, 2024, arXiv 2407.01955. `sorted` is trained to exit after
one layer, after two and after all three; `whole` on the same text, after all three
alone. Both are decoded with the same exits and threshold, so their difference is the
gain of sorting. The loss is the divergence from the target's law; the authors' (SoFT)
is the cross-entropy with the text. Theirs is cut from Vicuna 7B: its first 12 layers,
exits after 6, 9 and 12, three epochs of batch 128 at 2e-5, 4 % of them warm-up.
`--config.drafter.threshold=1` always runs all layers, 0 only the first exit's.

Command:  python -m experiments.run --config=configs/draft_models/s2d.py
              --workdir=runs/s2d
Hardware: 2 CPU cores.
At scale: no recipe.
"""

import ml_collections

from configs.draft_models import direct_alignment

EXITS = (1, 2)


def get_config() -> ml_collections.ConfigDict:
    c = direct_alignment.get_config()
    c.name = "s2d"
    c.variants = ml_collections.ConfigDict()
    c.variants.sorted = {"loss": "kl", "exits": EXITS}
    c.variants.whole = {"loss": "kl"}
    c.drafter = ml_collections.ConfigDict(
        {"name": "drafters/s2d", "exits": EXITS, "threshold": 0.7}
    )
    # The same drafts serve a shallower target, whose calls are cheap, at a lower
    # threshold: (a name or folder, fields of the drafter).
    c.targets = (("tiny-draft", {"threshold": 0.3}),)
    c.directions = (("sorted", "whole"), ("sorted@tiny-draft", "whole@tiny-draft"))
    return c
