"""Programs from examples: held-out problems, and the exact check of an answer.

    prompts(lm) -> token prompts;   score(text) -> 1.0 or 0.0

No two problems are the same program. A text holds the prompt too: `score` finds the
hidden examples by it, in the benchmark's fixed set.
"""

import functools
from typing import Any

from models.errors import DataError
from training.data import generated_problems
from training.data.problems import programs

COUNT, SEED = 512, 0  # of the set
NEW_TOKENS = 40  # enough for every answer of three operations


@functools.cache
def problems() -> dict[str, programs.Problem]:
    """Return {prompt: problem} of the whole set, in its order."""
    held = generated_problems.take(programs.draw, "validation", COUNT, SEED)
    return {problem.prompt: problem for problem in held}


def prompts(lm: Any, count: int = COUNT) -> list[list[int]]:
    """Encode the first `count` prompts with the model's tokenizer."""
    return [lm.tokenizer.encode(text) for text in [*problems()][:count]]


def score(text: str) -> float:
    """Return 1 for a prompt with an answer that passes all examples, else 0.

    Raises:
        DataError: the prompt is none of the set.
    """
    shown, answer = programs.read(text)
    if shown.prompt not in problems():
        raise DataError(f"{shown.prompt!r} is no prompt of the benchmark")
    return float(programs.check(problems()[shown.prompt], answer))
