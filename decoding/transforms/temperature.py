"""Temperature: divide the logits, so that p becomes p^(1/T) renormalised.

Baseline; the temperature of Ackley, Hinton, Sejnowski, "A Learning Algorithm for
Boltzmann Machines", 1985.

    z'_i = z_i / T          T -> temperature

Deviations: none. T = 0 is not a temperature but greedy decoding, which is a verifier.
Cost: one pass over V.
"""

import math

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="scaling",
    data=("temperature",),
    examples={"temperature": 0.9},
    sources=("ackley1985learning",),
)


@struct.dataclass
class Row:
    temperature: Array  # float32[]


def transform(temperature: float) -> base.LogitsTransform:
    """Divide the logits by `temperature` > 0."""
    if not 1e-6 <= temperature < math.inf:  # below, float32 logits may overflow
        raise MethodError(
            f"temperature {temperature} is not a number from 1e-6; for greedy decoding "
            "pass temperature=0 to generate and no temperature transform"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(temperature)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits / state.row.temperature

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
