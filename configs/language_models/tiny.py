"""The shipped target `tiny`: a 5.5M-parameter Llama on the standard library's source.

Command:  python -m experiments.run --config=configs/language_models/tiny.py
              --workdir=runs/tiny
Hardware: 2 CPU cores.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `language_model`: sizes, data and schedule."""
    c = ml_collections.ConfigDict()
    c.stage = "language_model"  # a file of experiments/trainings
    c.name = "tiny"  # of the run, in reports
    c.seed = 0  # of data and weights
    c.mesh = "auto"  # "data=2,fsdp=4": see experiments/recipes/defaults.py
    # As `mesh`: overrides of the sharding rules.
    c.rules = ""

    # The shape of the Llama model.
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
    c.data.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.data.directory = ""  # empty: workdir/data
    # Files of the source, if it is a folder (training/data/file_groups.py); a share
    # `held` of their documents is held out.
    c.data.parts = ()
    c.data.held = 0.02
    c.data.vocab_size = 4096  # of the tokenizer
    c.data.tokenizer = ""  # tokenizer.json or owner/name; empty: one trained here
    # (steps, windows a batch, tokens a window); the last stages train long positions.
    c.data.stages = ((150, 12, 512), (3950, 8, 512), (60, 2, 2048), (8, 2, 4096))
    c.data.repeat_share = 0.5  # of the windows: text that repeats after a marker
    # Texts before a repetition.
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
    c.train.muon_rate = 0.02  # peak rate of matrices
    c.train.adam_rate = 0.004  # peak rate of all other params
    c.train.weight_decay = 0.05  # of both
    c.train.warmup = 40  # steps of a rising rate
    c.train.decay = 900  # last steps, of a falling rate
    c.train.clip = 1.0  # largest norm of the gradient; 0: no bound
    c.train.compute_dtype = ""  # the weights' own; or bfloat16: training/loop/fit.py
    c.train.rows_at_once = 2  # the activations of two windows stay in the cache
    c.train.save_every = 50  # steps between checkpoints
    c.train.keep = 4  # checkpoints that stay
    c.train.log_every = 5  # steps whose metrics are fetched at a time
    c.train.bad_steps = "stop"  # or skip, roll_back: training/loop/step_health.py
    c.train.norm_limit = 0.0  # a larger gradient norm makes a step bad; 0: none
    c.train.patience = 10  # bad steps in a row that skip and roll_back accept

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.window = 2048  # tokens of a held-out row
    c.evaluate.context = 512  # tokens before those that are judged
    # Before a repetition; in training, too.
    c.evaluate.seen_marker = "\n# copy\n"
    c.evaluate.unseen_marker = "\n\n=== Once more: ===\n"  # likewise; not in training

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
    # That made the model, for its card.
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny.py "
        "--workdir=runs/tiny"
    )
    c.hardware = "2 CPU cores (shared)"  # likewise
    # Likewise.
    c.notes = (
        "The decay was begun at step 2,568 and taken back at step 3,350, when the run "
        "was made 700 steps longer."
    )
    c.export = ""  # a folder for the finished model; empty: workdir/export
    return c
