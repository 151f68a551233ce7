"""Min-p: keep the tokens at least p times as probable as the best one.

Nguyen, Baker, Neo, Roush, Kirsch, Shwartz-Ziv, "Turning Up the Heat: Min-p Sampling for
Creative and Coherent LLM Outputs", 2025, arXiv 2407.01082, §3.

    keep i  iff  P_i >= p_base * max_j P_j        p_base -> p

Deviations: compared in the log domain (z_i >= max z + log p), which differs from the
paper's product only by rounding.
Cost: two passes over V.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Min-p sampling, arXiv 2407.01082",
    guarantee=base.LAW,
    family="truncation",
    data=("p",),
    examples={"p": 0.02},
    sources=("nguyen2025turning",),
)


@struct.dataclass
class Row:
    p: Array  # float32[]


def transform(p: float) -> base.LogitsTransform:
    """Keep tokens at least `p` in [0, 1] times as probable as the best token."""
    if not 0 <= p <= 1:
        raise MethodError(
            f"min_p {p} is outside [0, 1]; it is a fraction of the best token's "
            "probability, and 0 keeps everything"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(p)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        gap = jnp.log(state.row.p)
        return vocab.keep(logits, vocab.near_best_mask(logits, lambda best: best + gap))

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
