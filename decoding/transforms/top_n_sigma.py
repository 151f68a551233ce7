"""Top-n-sigma: keep the logits within n standard deviations of the best.

Tang, Liu, Xu, Huang, *Top-n-sigma: Not All Logits Are You Need*, 2024, arXiv
2411.07641, section 3.

    keep i  iff  z_i >= max z - n sigma(z)        n -> n

The set does not depend on the temperature: it scales both sides.
Deviations: sigma is that of the tokens allowed so far, divided by their number (the
official code divides by one less).
Cost: four passes over V.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Top-n-sigma, arXiv 2411.07641",
    guarantee=base.LAW,
    family="truncation",
    data=("n",),
    sources=("tang2024top",),
)


@struct.dataclass
class Row:
    n: Array  # float32[]


def transform(n: float = 1.0) -> base.LogitsTransform:
    """Keep logits at most `n` > 0 standard deviations below the best."""
    if not 0 < n <= 1e6:
        raise MethodError(
            f"n={n}: use a number above 0; the paper uses 1, and 10 keeps nearly all"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(n)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        gap = state.row.n * vocab.deviation(logits)
        near = vocab.near_best_mask(logits, lambda best: best - gap)
        return vocab.keep(logits, near)

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
