"""The research target `tiny_programs`: 1.2M parameters that guess a Python expression.

Command:  python -m training.data.generated_problems --task=programs --out=DIRECTORY
          python -m experiments.run --config=configs/language_models/tiny_programs.py
              --workdir=runs/tiny_programs --config.data.source=DIRECTORY
Hardware: 2 CPU cores, some 15 minutes.

A prompt is three examples of a function of a list; five more are hidden. The problems
and their exact checker are in training/data/problems/programs.py;
experiments/benchmarks/programs.py gives held-out prompts and scores answers.
"""

import ml_collections

from configs.language_models import tiny_countdown


def get_config() -> ml_collections.ConfigDict:
    """Return `tiny_countdown`'s shape and schedule on programs."""
    c = tiny_countdown.get_config()
    c.name = "tiny_programs"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_programs.py "
        "--workdir=runs/tiny_programs --config.data.source=DIRECTORY"
    )
    c.data.vocab_size = 512
    c.card.language = "code"
    c.card.about = "generated Python expressions behind examples of what they give"
    c.card.origin = (
        "problems drawn by `training/data/problems/programs.py`: three examples of a "
        "function of a short list of digits, and an expression of one to three "
        "operations. A hash of an expression's outputs holds it out, so that no "
        "program that does the same was trained on"
    )
    return c
