"""Exclude top choices (XTC): sometimes drop all likely tokens but the least of them.

Weidmann, *Exclude Top Choices (XTC)*, 2024, pull request 6335 of
github.com/oobabooga/text-generation-webui. The official sampler throws a coin at each
token. With probability p it drops every token of P_i >= t but the least probable of
these. A fresh coin a token is a law: the mixture

    (1 - p) P + p P'        P': P without the dropped tokens; p -> probability
                            t -> threshold

which is what `apply` returns. So it needs no coin, and drafts do not change texts. It
must be the last transform: those after it would see the mixture, not P or P'.

Nothing is dropped where a line break or an end of text would be, as in the official
code (`spared`, and the target's EOS).
Deviations: of tokens tied as the least probable all are kept.
Cost: five passes over V.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError
from models.text import hf_tokenizer

CARD = Card(
    paper="Exclude Top Choices (XTC)",
    guarantee=base.LAW,
    family="diversity",
    data=("threshold", "probability"),
    needs=("vocab_size", "eos", "tokenizer"),
    examples={"threshold": 0.1, "probability": 0.5, "spared": (6,)},
    sources=("weidmann2024exclude",),
)


@struct.dataclass
class Row:
    threshold: Array  # float32[]
    probability: Array  # float32[]


@struct.dataclass
class Shared:
    spared: Array  # bool[V]: where one would be dropped, nothing is


def transform(
    vocab_size: int,
    eos: Sequence[int],
    tokenizer: Any,
    threshold: float = 0.1,
    probability: float = 0.5,
    spared: Sequence[int | str] = ("\n",),
) -> base.LogitsTransform:
    """Drop top choices.

    Args:
        vocab_size: V.
        eos: the target's ends of text, which are spared too.
        tokenizer: the target's, for the strings of `spared`.
        threshold: tokens this probable are top choices, in [0, 1]; above 0.5 there are
            never two of them.
        probability: how often they are dropped, in [0, 1].
        spared: tokens, or strings whose last token is meant.
    """
    for name, value in (("threshold", threshold), ("probability", probability)):
        if not 0 <= value <= 1:
            raise MethodError(
                f"{name}={value} is outside [0, 1]; usual values are 0.1 (threshold) "
                "and 0.5 (probability)"
            )
    held = hf_tokenizer.token_mask("spared", spared, tokenizer, vocab_size)
    held[[end for end in eos if end < vocab_size]] = True

    def init(tokens: Array, length: Array) -> base.State:
        row = Row(jnp.float32(threshold), jnp.float32(probability))
        return base.State(row, Shared(jnp.asarray(held)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        row, p = state.row, vocab.softmax(logits)
        top = p >= row.threshold
        least = jnp.where(top, p, jnp.inf).min(-1)
        dropped = top & (p > least)
        dropped &= ~(dropped & state.shared.spared).any()
        rest = jnp.where(dropped, 0.0, p).sum(-1)
        weight = jnp.where(
            dropped, 1 - row.probability, 1 - row.probability + row.probability / rest
        )
        return logits + jnp.log(weight)

    return base.LogitsTransform(init, apply, warper=True)
