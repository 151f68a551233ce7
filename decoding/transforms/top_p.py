"""Top-p (nucleus): keep the smallest set of best tokens of total probability p.

Holtzman, Buys, Du, Forbes, Choi, "The Curious Case of Neural Text Degeneration", 2020,
arXiv 1904.09751, §3.1.

    keep i  iff  sum over {j: P_j > P_i} of P_j  <  p

Deviations: all tokens tied with the least of the nucleus are kept (the paper leaves the
choice open; HF transformers keeps those that its sort puts last). p = 1 is exactly the
identity.
Cost: 32 passes over V (bisection on the bits of the threshold), no sort.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Nucleus sampling, arXiv 1904.09751",
    guarantee=base.LAW,
    family="truncation",
    data=("p",),
    examples={"p": 0.95},
    sources=("holtzman2020curious",),
)


@struct.dataclass
class Row:
    p: Array  # float32[]


def transform(p: float) -> base.LogitsTransform:
    """Keep the nucleus of mass `p` in (0, 1]."""
    if not 0 < p <= 1:
        raise MethodError(
            f"top_p {p} is outside (0, 1]; 1 keeps everything, and for the best token "
            "alone use temperature=0 or top_k 1"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(p)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return vocab.keep(logits, vocab.top_p_mask(logits, state.row.p))

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
