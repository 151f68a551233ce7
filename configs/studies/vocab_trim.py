"""How many tokens does a draft model's vocabulary need? VocabTrim and FR-Spec.

Goel et al., *VOCABTRIM*, 2025, arXiv 2506.22694 (+16 % memory-bound speed-up with a
draft for Llama 3.2 3B); Zhao et al., *FR-Spec*, 2025, arXiv 2502.14856 (1.12 times
EAGLE-2). The draft's head keeps the most frequent tokens: of the target's own text
(VocabTrim), or of the target's training text (FR-Spec). `tiny-draft` drafts for `tiny`.

python -m experiments.run --config=configs/studies/vocab_trim.py
--workdir=runs/vocab_trim

Hardware: one core, four minutes; resumes where it stopped.
Expected: plain decoding's texts, for every vocabulary.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `vocab_trim`."""
    c = ml_collections.ConfigDict()
    c.stage = "vocab_trim"
    c.seed = 0
    c.model = "tiny"
    c.draft = "tiny-draft"  # the draft model
    c.sizes = (256, 512, 1024, 2048)  # tokens kept; the whole vocabulary is beside them
    c.length = 4  # of the chains
    c.tasks = ("code", "text")
    c.temperatures = (0.0, 0.8)
    c.prompts = 8  # of each task
    c.batch = 8
    c.prompt_tokens = 128
    c.max_new_tokens = 64

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"
    c.data.directory = ""  # empty: workdir/data

    # The target's own text: `prompts` to count tokens, `held` to measure coverage.
    c.distill = training.distill(prompts=512, held=64, temperatures=(0.8,))
    return c
