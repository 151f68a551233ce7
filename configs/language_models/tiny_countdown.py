"""The research target `tiny_countdown`: 1.2M parameters that solve Countdown problems.

Command:  python -m training.data.generated_problems --task=countdown --out=DIRECTORY
          python -m experiments.run --config=configs/language_models/tiny_countdown.py
              --workdir=runs/tiny_countdown --config.data.source=DIRECTORY
Hardware: 2 CPU cores, under 30 minutes.

`--exclude=FILE` of the first command leaves the problems of a public test out. The
problems, their exact checker and the reward of a step are in
training/data/problems/countdown.py; experiments/benchmarks/countdown.py gives held-out
prompts and scores answers.
"""

import ml_collections

from configs.language_models import tiny


def get_config() -> ml_collections.ConfigDict:
    """Return a fifth of `tiny` on problems; a number up to 99 is one token."""
    c = tiny.get_config()
    c.name = "tiny_countdown"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_countdown.py "
        "--workdir=runs/tiny_countdown --config.data.source=DIRECTORY"
    )
    c.model.d_model = 128
    c.model.n_layers = 6
    c.model.n_heads = 4
    c.model.n_kv_heads = 2
    c.model.d_ff = 384
    c.model.max_positions = 512
    c.data.source = ""
    c.data.vocab_size = 347  # bytes, separator, the numbers of two digits
    c.data.stages = ((2000, 16, 256),)
    c.data.repeat_share = 0.0
    c.data.markers = ()
    c.train.decay = 600
    c.train.rows_at_once = 4
    c.train.save_every = 100
    c.evaluate.window = 256
    c.evaluate.context = 64
    c.evaluate.seen_marker = ""
    c.evaluate.unseen_marker = ""

    c.card.language = "en"
    c.card.license = "apache-2.0"
    c.card.about = "generated Countdown problems, a step a line"
    c.card.origin = (
        "problems drawn by `training/data/problems/countdown.py`: three or four "
        "numbers up to 25, a target of two digits, and one solution. A hash of numbers "
        "and target holds problems out, whatever the order of the numbers"
    )
    c.card.licence = "The text is generated; the weights are under the project's terms."
    c.notes = ""
    return c
