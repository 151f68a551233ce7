"""Eta sampling: drop the tokens below a bar that falls as the entropy rises.

Hewitt, Manning, Liang, *Truncation Sampling as Language Model Desmoothing*, 2022, arXiv
2210.15191, section 4. With the entropy H in nats,

    eta = min(epsilon, sqrt(epsilon) exp(-H))                 epsilon -> epsilon
    keep i  iff  P_i >= eta, or i is the best token

Deviations: tokens tied with the best are all kept. The paper's alpha is sqrt(epsilon),
as in its experiments.
Cost: four passes over V.
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
    examples={"epsilon": 0.2},
    sources=("hewitt2022truncation",),
)


@struct.dataclass
class Row:
    epsilon: Array  # float32[]


def transform(epsilon: float) -> base.LogitsTransform:
    """Keep tokens of probability eta or more, `epsilon` in [0, 1] (paper: 2e-3)."""
    if not 0 <= epsilon <= 1:
        raise MethodError(
            f"epsilon={epsilon} is outside [0, 1]; it is a probability, usual values "
            "are 0.0003 to 0.004, and 0 keeps everything"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(epsilon)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        logp, most = vocab.log_softmax(logits), jnp.log(state.row.epsilon)
        eta = jnp.minimum(most, most / 2 - vocab.entropy(logits))
        best = vocab.near_best_mask(logits, lambda x: x)
        return vocab.keep(logits, (logp >= eta[..., None]) | best)

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
