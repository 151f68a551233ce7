"""Likelihood: the log-probability of the text under the target.

Baseline. With a text y of log-probabilities log p_t under the target's raw law,

    r(y) = sum_t log p_t / |y|^alpha        alpha -> length_penalty

Deviations: none. Cost: none; the loop kept the numbers.
"""

import math
from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import PREFIX, Reward
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LOSSY,
    family="by the model",
    data=("length_penalty",),
)


def reward(length_penalty: float = 1.0) -> Reward:
    """Value texts by their log-probability.

    Args:
        length_penalty: 1: the mean of the tokens, 0: the sum.
    """
    if not math.isfinite(length_penalty):
        raise MethodError(f"length_penalty={length_penalty}: use a finite number")

    def ask(samples: Sequence[Sample]) -> list[float]:
        sizes = [max(len(s.logprobs), 1) ** length_penalty for s in samples]
        return [sum(s.logprobs) / size for s, size in zip(samples, sizes)]

    return Reward(ask=ask, level=PREFIX)
