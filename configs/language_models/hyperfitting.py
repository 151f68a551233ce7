"""Hyperfitting of `tiny`: few samples by heart, then greedy texts.

Carlsson et al., *The Hyperfitting Phenomenon*, 2025, arXiv 2412.04318.

Command:  python -m experiments.run --config=configs/language_models/hyperfitting.py
              --workdir=runs/hyperfitting
Hardware: 2 CPU cores; some 20 minutes, from 1.3 s of processor time a step.
Then:     python -m experiments.generate --model=runs/hyperfitting/export ...

Paper:    greedy texts of a hyperfitted model have a higher type-token ratio than those
          of the model before, and than top-p sampling's, while the loss of held-out
          text rises and the entropy falls. Its models have 1.1B to 70B params: 2,000
          samples of 256 tokens, batches of 8, 20 epochs of Adam at 1e-6 without decay.
Here:     fewer loops and a higher loss, but type-token ratios below top-p's
          (experiments/reports/hyperfitting.md). A model of 5.5M params needs a higher
          rate, and fewer samples more often, to come near a loss of zero. Any model can
          take its place: --config.model=runs/tiny_text/export
          --config.data.source=DIRECTORY.
"""

import ml_collections

from configs.base import training


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `hyperfitting`."""
    c = ml_collections.ConfigDict()
    c.stage = "hyperfitting"
    c.name = "hyperfitting"  # of the run, in reports
    c.seed = 0  # of the samples, their order and the noise
    c.model = "tiny"
    c.mesh = ""  # "data=2,fsdp=4": see experiments/recipes/defaults.py
    c.rules = ""  # as `mesh`: overrides of the sharding rules

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.data.directory = ""  # empty: workdir/data
    c.data.samples = 200  # that are trained on
    c.data.window = 256  # tokens of a sample
    c.data.batch = 8  # samples of a step
    c.data.epochs = 50  # how often a sample is shown
    c.data.held = 128  # samples of held-out text

    c.train = training.train(rate=5e-4, clip=0.0, save_every=125)
    del c.train.optimizer, c.train.muon_rate, c.train.b2, c.train.warmup
    del c.train.clip_value
    c.train.evaluate_every = 125  # steps between evaluations

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.prompts = 32  # beginnings of held-out samples
    c.evaluate.prompt_tokens = 32  # of each
    c.evaluate.new_tokens = 224  # of a text
    c.evaluate.last = 96  # tokens of a text whose type-token ratio is taken
    c.evaluate.seeds = 3  # texts of a prompt, where they are sampled

    # Texts of the model before training; "greedy" and "top_p" are needed.
    c.arms = {
        "greedy": {},
        "top_p": {
            "temperature": 1.0,
            "transforms": ({"name": "transforms/top_p", "p": 0.9},),
        },
        "repetition_penalty": {
            "transforms": ({"name": "transforms/repetition_penalty", "penalty": 1.1},),
        },
        "rpg": {"transforms": ({"name": "transforms/rpg"},)},
    }
    c.export = ""  # a folder for the finished model; empty: workdir/export
    return c
