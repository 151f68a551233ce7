"""The shipped target `tiny`: a 5.5M-parameter Llama on the standard library's source.

Command:  python -m experiments.run --config=configs/language_models/tiny.py
              --workdir=runs/tiny
Hardware: 2 CPU cores.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `language_model`: sizes, data and schedule."""
    c = ml_collections.ConfigDict()
    c.stage = "language_model"
    c.name = "tiny"
    c.seed = 0
    c.mesh = "auto"  # "data=2,fsdp=4": see experiments/recipes/defaults.py
    c.rules = ""

    c.model = ml_collections.ConfigDict()
    c.model.d_model = 256
    c.model.n_layers = 8
    c.model.n_heads = 8
    c.model.n_kv_heads = 2
    c.model.head_dim = 32
    c.model.d_ff = 512
    c.model.max_positions = 4096
    c.model.rope_theta = 10000.0

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"
    c.data.directory = ""  # empty: workdir/data
    # Files of the source, if it is a folder (training/data/file_groups.py); a share
    # `held` of their documents is held out.
    c.data.parts = ()
    c.data.held = 0.02
    c.data.vocab_size = 4096
    c.data.tokenizer = ""  # a tokenizer.json; empty: one trained on the training split
    # (steps, windows a batch, tokens a window); the last stages train long positions.
    c.data.stages = ((150, 12, 512), (3950, 8, 512), (60, 2, 2048), (8, 2, 4096))
    c.data.repeat_share = 0.5
    c.data.markers = (
        "\n# copy\n",
        "\n# Copy\n",
        "\n\n# copy:\n",
        "\n# again\n",
        "\n# repeat\n",
        "\n# the same again\n",
        "\n# edited\n",
        "\n# edited copy\n",
        "\n# new version\n",
        "\n# after\n",
        "\n\n# ---\n\n",
        "\n# ----------------\n",
        "\n\n\n",
        "\n```\n",
        "\n```\n\n```python\n",
        '\n"""\n',
        "\n# file: copy.py\n",
        "\n#!/usr/bin/env python3\n",
        "<|endoftext|>",
    )

    c.train = ml_collections.ConfigDict()
    c.train.muon_rate = 0.02
    c.train.adam_rate = 0.004
    c.train.weight_decay = 0.05
    c.train.warmup = 40
    c.train.decay = 900
    c.train.clip = 1.0
    c.train.compute_dtype = ""  # the weights' own; or bfloat16: training/loop/fit.py
    c.train.rows_at_once = 2  # the activations of two windows stay in the cache
    c.train.save_every = 50
    c.train.keep = 4
    c.train.log_every = 5
    c.train.bad_steps = "stop"  # or skip, roll_back: training/loop/step_health.py
    c.train.norm_limit = 0.0
    c.train.patience = 10

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.window = 2048
    c.evaluate.context = 512
    c.evaluate.seen_marker = "\n# copy\n"
    c.evaluate.unseen_marker = "\n\n=== Once more: ===\n"

    # For the model card.
    c.card = ml_collections.ConfigDict()
    c.card.language = "code"
    c.card.license = "psf-2.0"
    c.card.about = "Python source"
    c.card.origin = (
        "the standard library's source as found in the interpreter that trained the "
        "model, CPython {python}. Generated tables, `site-packages`, `pydoc_data`, "
        "lib2to3's broken test data, files that are not UTF-8, files under 64 "
        "characters and duplicates are left out. Files are split by the SHA-256 of "
        "their path in the library"
    )
    c.card.licence = (
        "The weights derive from the source text of CPython's standard library, which "
        "is under the Python Software Foundation License Version 2 (some files under "
        "the licences that they name). The model may emit passages of that text; the "
        "licence's terms apply to them."
    )
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny.py "
        "--workdir=runs/tiny"
    )
    c.hardware = "2 CPU cores (shared)"
    c.notes = (
        "The decay was begun at step 2,568 and taken back at step 3,350, when the run "
        "was made 700 steps longer."
    )
    c.export = ""  # a folder for the finished model; empty: workdir/export
    return c
