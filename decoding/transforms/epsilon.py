"""Epsilon sampling: drop the tokens less probable than a constant.

Hewitt, Manning, Liang, *Truncation Sampling as Language Model Desmoothing*, 2022, arXiv
2210.15191, section 3.

    keep i  iff  P_i >= epsilon, or i is the best token        epsilon -> epsilon

Deviations: tokens tied with the best are all kept.
Cost: three passes over V.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Truncation sampling as desmoothing, arXiv 2210.15191",
    guarantee=base.LAW,
    family="truncation",
    data=("epsilon",),
    examples={"epsilon": 0.02},
    sources=("hewitt2022truncation",),
)


@struct.dataclass
class Row:
    epsilon: Array  # float32[]


def transform(epsilon: float) -> base.LogitsTransform:
    """Keep tokens of probability `epsilon` in [0, 1] or more (paper: 3e-4 to 2e-3)."""
    if not 0 <= epsilon <= 1:
        raise MethodError(
            f"epsilon={epsilon} is outside [0, 1]; it is a probability, usual values "
            "are 0.0003 to 0.002, and 0 keeps everything"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(epsilon)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        logp = vocab.log_softmax(logits)
        likely = logp >= jnp.log(state.row.epsilon)
        return vocab.keep(logits, likely | vocab.near_best_mask(logits, lambda x: x))

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
