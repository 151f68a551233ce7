"""Own sampler: keep the tokens whose probability is near the best one's.

    keep i  iff  log p_i >= max log p - margin

Deviations: none, it has no paper. Cost: one maximum over V.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="an example of decodax",
    guarantee=base.LAW,
    family="truncation",
    data=("margin",),
)


@struct.dataclass
class Row:
    margin: Array  # float32[]


def transform(margin: float = 2.0) -> base.LogitsTransform:
    """Keep the tokens within `margin` >= 0 nats of the best one."""
    if not margin >= 0:
        raise MethodError(f"margin={margin}: use a number >= 0")

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(margin)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        near = vocab.near_best_mask(logits, lambda best: best - state.row.margin)
        return vocab.keep(logits, near)

    return base.LogitsTransform(init, apply, warper=True)
