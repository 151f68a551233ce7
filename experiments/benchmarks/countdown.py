"""Countdown: held-out problems, and the exact check of an answer.

    prompts(lm) -> token prompts;   score(text) -> 1.0 or 0.0

A text holds the prompt too, so that `score` needs nothing else.
"""

from typing import Any

from training.data import generated_problems
from training.data.problems import countdown

COUNT, SEED = 512, 0  # of the set
NEW_TOKENS = 40  # enough for every answer of four numbers


def problems(path: str = "") -> list[countdown.Problem]:
    """Return the set: held-out problems, or those of a file (`countdown.read_file`).

    A file's problems are held out only if the training excluded them.
    """
    if path:
        return countdown.read_file(path)
    return [*generated_problems.take(countdown.draw, "validation", COUNT, SEED)]


def prompts(lm: Any, count: int = COUNT, path: str = "") -> list[list[int]]:
    """Encode the first `count` prompts with the model's tokenizer."""
    return [lm.tokenizer.encode(p.prompt) for p in problems(path)[:count]]


def score(text: str) -> float:
    """Return 1 for a prompt with a right answer, else 0."""
    return float(countdown.check(*countdown.read(text)))
