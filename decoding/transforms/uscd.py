"""USCD: take away what a lame prompt says, where the model is uncertain.

Wang, Ding, Shen, Luo, He, Yu, Tao, *USCD: Improving Code Generation of LLMs by
Uncertainty-Aware Selective Contrastive Decoding*, 2024, arXiv 2409.05923, section 3,
with the official code's constants. The stream reads a *lame* prompt: the same without
its examples of inputs and outputs. With the laws p and p',

    z' = log p                          if sum p^2 > certainty
    z'_v = log(p_v - weight p'_v)       if p_v >= fraction / V, where that is above 0
           -inf                         otherwise

weight = 0.7; phi -> fraction. The code compares the standard deviation of p over V with
mu = 0.0035; it is sqrt((sum p^2 - 1/V) / V), so that for its V = 32016 the same rule is
sum p^2 > 0.39, which does not depend on V.

Deviations: both prompts get the one token that is chosen; in the official code each
draws its own from the shared scores, at temperature > 0 they part. The lame prompt
keeps its own length and is not padded. Where no token would be left, z' is log p.
Cost: six passes over V, and a call of the target on the lame prompt's block.
"""

import math

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="USCD, arXiv 2409.05923",
    guarantee=base.LAW,
    family="contrast",
    data=("certainty", "fraction", "weight"),
    sources=("wang2024uscd",),
)


@struct.dataclass
class Row:
    certainty: Array  # float32[]
    fraction: Array  # float32[]
    weight: Array  # float32[]


def transform(
    certainty: float = 0.39,
    fraction: float = 1 / 3,
    weight: float = 0.7,
    lame: str = "lame",
) -> base.LogitsTransform:
    """Contrast the target with itself under a lame prompt.

    Args:
        certainty: above this sum of squared probabilities nothing is done, in [0, 1];
            0 never contrasts, 1 always.
        fraction: tokens below this share of the mean probability are dropped.
        weight: of the lame prompt's probabilities, 0 or more.
        lame: name of the stream.
    """
    if not 0 <= certainty <= 1:
        raise MethodError(
            f"certainty={certainty} is outside [0, 1]; it is a sum of squared "
            "probabilities, 0.39 in the paper's code"
        )
    if not 0 <= fraction < math.inf or not 0 <= weight < math.inf:
        raise MethodError(
            f"fraction={fraction}, weight={weight}: use 0 or more (1/3 and 0.7 in the "
            "paper's code)"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(*map(jnp.float32, (certainty, fraction, weight))))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if lame not in aux:
            return logits
        row, p = state.row, vocab.softmax(logits)
        left = p - row.weight * vocab.softmax(aux[lame])
        kept = (p >= row.fraction / p.shape[-1]) & (left > 0)
        scores = jnp.log(jnp.where(kept, left, 0.0))
        unsure = ((p * p).sum(-1) <= row.certainty) & kept.any(-1)
        return jnp.where(unsure[..., None], scores, logits)

    return base.LogitsTransform(init, apply, streams=(lame,))
