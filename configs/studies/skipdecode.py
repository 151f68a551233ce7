"""SkipDecode's schedules beside sets of as many layers: nats, texts, layers.

Del Corro et al., *SkipDecode: Autoregressive Skip Decoding with Batching and Caching
for Efficient LLM Inference*, 2023, arXiv 2307.02628. At every budget (max, min) the
layers shrink along the text. Controls of the schedule's mean: the same form at every
token of the text, random sets, the best fixed set of training text. A tree of drafts
must write plain decoding's text under every schedule.

python -m experiments.run --config=configs/studies/skipdecode.py \
    --workdir=runs/skipdecode_study

Hardware: two CPU cores, ten minutes. Trained arms, and the best fixed sets, need the
folder of configs/predictors/skipdecode.py: --config.trained=runs/skipdecode.
Expected: more nats for fewer layers; no claim of the paper is about as small a model.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `scheduled_exits`."""
    c = ml_collections.ConfigDict()
    c.stage = "scheduled_exits"
    c.model = "tiny"  # the target
    c.draft = "tiny-draft"  # the drafter's model
    c.drafter = "model_tree"  # method whose texts are compared; empty: none
    c.data = ""  # text: empty, held-out code; or the folder of `tiny_text`
    c.trained = ""  # folder of configs/predictors/skipdecode.py; empty: no such arms
    c.budgets = ((8, 6), (8, 4), (8, 2), (6, 4))  # (max, min) layers
    c.warm = 1  # first layers that are never skipped
    c.tokens = 64  # of a text, over which the layers shrink
    c.seeds = (0, 1, 2)  # each has cases of its own
    c.cases = 16  # of a seed, decoded together
    c.prompt = 64  # tokens of a case
    c.new = 64  # tokens behind them, judged and written
    c.draws = 5  # random sets of a row
    return c
