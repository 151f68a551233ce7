"""Length: how near a text's number of tokens is to a wanted one.

Baseline, as in DeAL (Huang, Sengupta, Bonadiman, Lai, Gupta, Pappas, Mansour,
Kirchhoff, Roth, 2025, arXiv 2402.06147), for texts of L tokens:

    r(y) = -| |y| - L |        L -> target

Deviations: none. Cost: none.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.reward import Reward
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LOSSY,
    family="by rule",
    data=("target",),
    examples={"target": 12},
)


@struct.dataclass
class Row:
    target: Array  # int32[P]


def reward(target: int) -> Reward:
    """Value texts by their length.

    Args:
        target: tokens of a text, its end included.
    """
    if target != int(target) or target < 1:
        raise MethodError(f"target={target}: use a number of tokens, 1 or more")

    def init(prompts: int) -> base.State:
        return base.State(Row(jnp.full(prompts, target, jnp.int32)))

    def score(state: base.State, tokens: Array, prompt: Array, length: Array) -> Array:
        return -jnp.abs(length - prompt - state.row.target).astype(jnp.float32)

    return Reward(score=score, init=init)
