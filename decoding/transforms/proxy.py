"""Proxy tuning: add a small model's change by tuning to the target's logits.

Zhang, Wang, Ding, Qi, Hua, Lv, Zhou, *Fast and Slow Generating*, 2024, arXiv
2406.12295, section 3; after Liu et al., *Tuning Language Models by Proxy*, 2024, arXiv
2401.08565. With the logits z_l of the target, z_ft of a tuned small model and z_s of
the same untuned,

    z' = z_l + alpha (z_ft - z_s)

z_l → `logits`; z_ft → `aux[expert]`; z_s → `aux[amateur]`; alpha → `alpha`.

Deviations from the paper: none; without the streams (in a draft) the logits stay
unchanged. Cost: two passes over V, and a call of both small models on the block.
"""

import math

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Fast and Slow Generating, arXiv 2406.12295",
    guarantee=base.LAW,
    family="contrast",
    data=("alpha",),
    sources=("zhang2024fast", "liu2024tuning"),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]


def transform(
    alpha: float = 1.0, expert: str = "expert", amateur: str = "amateur"
) -> base.LogitsTransform:
    """Add `alpha` times the difference of the streams `expert` and `amateur`.

    They are the tuned and the untuned small model.
    """
    if not math.isfinite(alpha):
        raise MethodError(f"alpha={alpha}: use a finite number")

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.float32(alpha)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if expert not in aux or amateur not in aux:
            return logits
        return logits + state.row.alpha * (aux[expert] - aux[amateur])

    return base.LogitsTransform(init, apply, streams=(expert, amateur))
