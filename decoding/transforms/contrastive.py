"""Contrastive combination: add the difference of a large and a small model's logits.

Zhang, Wang, Ding, Qi, Hua, Lv, Zhou, *Fast and Slow Generating*, 2024, arXiv
2406.12295, section 3; after Li et al., *Contrastive Decoding*, 2023, arXiv 2210.15097.
With the logits z_l of the target and z_s of the small model at the same node,

    z'_i = z_s,i + beta (z_l,i - z_s,i)   if z_l,i >= max_j z_l,j + log alpha
           -inf                            otherwise

z_l → `logits`; z_s → `aux[amateur]`; alpha → `alpha`; beta → `beta`. beta = 1 is the
target alone under the mask; beta > 1 subtracts the small model's logits.

Deviations from the paper: none; without the stream (in a draft) the logits stay
unchanged. Cost: three passes over V, and a call of the small model on the block.
"""

import math

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Fast and Slow Generating, arXiv 2406.12295",
    guarantee=base.LAW,
    family="contrast",
    data=("alpha", "beta"),
    sources=("zhang2024fast", "li2023contrastive"),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    beta: Array  # float32[]


def transform(
    alpha: float = 0.1, beta: float = 0.5, amateur: str = "amateur"
) -> base.LogitsTransform:
    """Combine the target with the small model.

    Args:
        alpha: keep tokens of at least this fraction of the best token's probability.
        beta: weight of the target; 1 - beta is the small model's.
        amateur: name of the small model's stream.
    """
    if not 0 <= alpha <= 1:
        raise MethodError(
            f"alpha={alpha} is outside [0, 1]; it is a fraction of the best token's "
            "probability, and 0 keeps everything"
        )
    if not math.isfinite(beta):
        raise MethodError(f"beta={beta}: use a finite number")

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(alpha), jnp.float32(beta)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if amateur not in aux:
            return logits
        small, row = aux[amateur], state.row
        mixed = small + row.beta * (logits - small)
        gap = jnp.log(row.alpha)
        return vocab.keep(mixed, vocab.near_best_mask(logits, lambda best: best + gap))

    return base.LogitsTransform(init, apply, streams=(amateur,))
