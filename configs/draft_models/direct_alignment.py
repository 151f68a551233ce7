"""A draft model aligned with its target: TVD++ beside KL, TV and plain text.

Goel et al., *Direct Alignment of Draft Model for Speculative Decoding with
Chat-Fine-Tuned LLMs*, 2024, arXiv 2403.00858: a pre-trained draft is trained towards
the law of its target, on the target's own text at several temperatures. Every variant
starts from the same weights and trains on the same text; only the loss differs.

Command:  python -m experiments.run --config=configs/draft_models/direct_alignment.py
              --workdir=runs/direct_alignment
Hardware: 2 CPU cores.
At scale: no recipe. The paper's: a draft of 115 M for Llama 2 Chat 7B.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `draft_models`."""
    c = ml_collections.ConfigDict()
    c.stage = "draft_models"
    c.name = "direct_alignment"  # of the run, in reports
    c.seed = 0
    c.model = "tiny"
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    c.rules = ""

    # The draft: a model to start from, or (start empty) the shape of a new one.
    c.draft = ml_collections.ConfigDict()
    c.draft.start = "tiny-draft"
    c.draft.d_model = 128
    c.draft.n_layers = 3
    c.draft.n_heads = 4
    c.draft.n_kv_heads = 2
    c.draft.d_ff = 320
    c.draft.rope_theta = 10000.0

    c.data = training.data(tokens=300_000)  # of each variant, on the target's text
    c.data.pretraining_tokens = 0  # on raw text, before the alignment
    c.data.recut = True  # False: all epochs cut the text into the same windows
    c.update(training.teacher())

    # The target's own text, after passages of the source.
    c.distill = training.distill(
        prompts=768, held=32, temperatures=(0.0, 0.6, 0.8, 1.0)
    )

    # name -> arguments of training/objectives/language_models/draft_model.py
    c.variants = ml_collections.ConfigDict()
    c.variants.tvdpp = {"loss": "tvdpp"}
    c.variants.kl = {"loss": "kl"}
    c.variants.tv = {"loss": "tv"}
    c.variants.ce = {"label": 1.0, "soft": 0.0}
    # Pairs (more, less) compared on the same prompts; `before`: the unaligned draft.
    c.directions = (
        ("tvdpp", "before"),
        ("tvdpp", "kl"),
        ("tvdpp", "tv"),
        ("kl", "ce"),
    )

    c.train = training.train(rate=0.0003)
    c.train.pretraining_rate = 0.003  # peak learning rate on raw text
    c.train.part = 0  # positions whose logits exist at a time; 0: all
    c.train.evaluate_every = 50  # steps between evaluations; 0: none

    # The drafter that decodes with the drafts, and its arguments.
    c.drafter = ml_collections.ConfigDict({"name": "drafters/model"})
    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.temperature = 0.8  # of the evaluations while training
    c.evaluate.length = 4  # drafts a round
    c.evaluate.prompts = 8  # decoded in an evaluation
    c.evaluate.prompt_tokens = 64  # of each
    c.evaluate.new_tokens = 48  # of each text

    c.update(training.decoding())
    return c
