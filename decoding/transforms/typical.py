"""Locally typical sampling: keep tokens whose surprise is nearest to the entropy.

Meister, Pimentel, Wiher, Cotterell, "Locally Typical Sampling", 2023, arXiv 2202.00666.

    d_i = | H(P) + log P_i |
    keep the smallest set of least d of probability tau        tau -> mass

Deviations: tokens tied in d with the last of the set are all kept, as in HF
transformers. mass = 1 is the identity. The method may drop the best token.
Cost: 35 passes over V (entropy, then bisection on the bits of the threshold), no sort.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Locally typical sampling, arXiv 2202.00666",
    guarantee=base.LAW,
    family="truncation",
    data=("mass",),
    examples={"mass": 0.95},
    sources=("meister2023locally",),
)


@struct.dataclass
class Row:
    mass: Array  # float32[]


def transform(mass: float) -> base.LogitsTransform:
    """Keep the typical set of `mass` in (0, 1]."""
    if not 0 < mass <= 1:
        raise MethodError(
            f"typical mass {mass} is outside (0, 1]; the paper uses 0.2 to 0.95, and 1 "
            "keeps everything"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(mass)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        logp = vocab.log_softmax(logits)
        nearness = -jnp.abs(logp + vocab.entropy(logits)[..., None])
        typical = vocab.mass_mask(nearness, jnp.exp(logp), state.row.mass)
        return vocab.keep(logits, typical)

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
