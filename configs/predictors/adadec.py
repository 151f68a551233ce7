"""The entropy from which on AdaDec looks ahead, fitted for a model.

He et al., *Towards Better Code Generation: Adaptive Decoding with Uncertainty
Guidance*, 2025, arXiv 2506.08980. The model reads held-out text. A logistic regression
predicts from the entropy of each token's law whether its most probable token is the
true one; the cut of the best accuracy, as an entropy, is the threshold of
`search/adadec`. At random places the search's choice is compared with the best token.

Command:  python -m experiments.run --config=configs/predictors/adadec.py
              --workdir=runs/adadec
Hardware: 2 CPU cores.
At scale: no recipe. The authors': models of 0.6B to 8B read the reference solutions of
          BigCodeBench; thresholds of 0.61 to 1.32 nats.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `adadec_threshold`."""
    c = ml_collections.ConfigDict()
    c.stage = "adadec_threshold"
    c.name = "adadec"  # of the run, in reports
    c.seed = 42  # of the choice of the tokens for the test
    c.model = "tiny"
    c.test = 0.2  # share of the tokens for the test

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.data.directory = ""  # empty: workdir/data
    c.data.tokens = 200_000  # most tokens of the held-out split to read
    c.data.window = 1024  # tokens of a forward pass, a quarter of them read before

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.prompts = 4000  # places of held-out text where choices are compared
    c.evaluate.prompt_tokens = 128  # before each
    c.evaluate.batch = 50  # places at once
    c.evaluate.beams = 3  # tokens to choose from
    c.evaluate.lookahead = 5  # tokens of a continuation behind each
    return c
