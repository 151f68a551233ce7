"""A Python function as a reward, asked once for all texts at hand.

Baseline. `function(samples) -> [float, ...]` gets a list of
`decoding.hypotheses.rank.Sample`: the text, its tokens and log-probabilities, and the
index of its prompt. `generate(reward=function)` is short for this.

Deviations: none. Cost: the host waits for the device, and the device for the function.
"""

from collections.abc import Callable, Sequence
from typing import Any

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.rank import Sample
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LOSSY,
    family="by rule",
    data=("function",),
    examples={"function": lambda samples: [-len(s.tokens) for s in samples]},
)


def reward(function: Callable[[Sequence[Sample]], Any]) -> rewards.Reward:
    """Value texts by a function on the host.

    Args:
        function: all texts at hand -> a number for each, more is better.
    """
    if not callable(function):
        raise MethodError(f"function={function!r}: give a function of a list of texts")
    return rewards.Reward(ask=function, level=rewards.PREFIX)
