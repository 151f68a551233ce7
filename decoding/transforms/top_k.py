"""Top-k: keep the k most probable tokens.

Fan, Lewis, Dauphin, "Hierarchical Neural Story Generation", 2018, arXiv 1805.04833.

    keep i  iff  z_i >= z_(k)        z_(k): the k-th greatest logit

Deviations: none. Tokens tied with the k-th are all kept, as in HF transformers; k
beyond the vocabulary keeps everything.
Cost: 32 passes over V (bisection on the bits of the threshold), no sort.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Top-k sampling, arXiv 1805.04833",
    guarantee=base.LAW,
    family="truncation",
    data=("k",),
    examples={"k": 6},
    sources=("fan2018hierarchical",),
)


@struct.dataclass
class Row:
    k: Array  # int32[]


def transform(k: int) -> base.LogitsTransform:
    """Keep the `k` >= 1 best tokens."""
    if not (k >= 1 and k % 1 == 0):
        raise MethodError(
            f"top_k {k} is not a positive integer; leave top_k out to keep every token"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.int32(min(k, 2**31 - 1))))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return vocab.keep(logits, vocab.top_k_mask(logits, state.row.k))

    return base.LogitsTransform(init, apply, warper=True, nameless=True)
