"""Logit bias: add a constant to the logits of chosen tokens.

Baseline; the OpenAI API's `logit_bias`, HF transformers' `sequence_bias` of one token.

    z'_i = z_i + b_i

Deviations: none. Infinite and huge biases are refused: use `ban_tokens`, which always
leaves a token, for bans.
Cost: a scatter of as many values as there are biases, of which 16, 32, 64, ... have
room, so that few programs compile and prompts of one call may differ.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="bias",
    data=("bias",),
    needs=("vocab_size",),
    examples={"bias": ((1, 0.5), (2, -0.5))},
)


LEAST = 16  # room for biases, at least


@struct.dataclass
class Row:
    tokens: Array  # int32[M]; V: no bias
    values: Array  # float32[M]


def transform(
    bias: Mapping[int, float] | Sequence[tuple[int, float]], vocab_size: int
) -> base.LogitsTransform:
    """Add `bias`, a dict or a sequence of pairs (token, value)."""
    pairs = tuple(bias.items() if isinstance(bias, Mapping) else bias)
    tokens = [int(token) for token, _ in pairs]
    for token, value in pairs:
        if not 0 <= token < vocab_size:
            raise MethodError(
                f"logit_bias names token {token}, no id of the vocabulary of "
                f"{vocab_size}: remove it"
            )
        if not -1e6 <= value <= 1e6:
            raise MethodError(
                f"logit_bias of token {token} is {value}, outside [-1e6, 1e6]: use "
                "ban_tokens to forbid a token"
            )
    if len(set(tokens)) < len(tokens):
        raise MethodError(
            f"logit_bias names a token twice in {tokens}: merge its values"
        )

    size = max(LEAST, 1 << (len(pairs) - 1).bit_length())
    none = size - len(pairs)

    def init(prompt: Array, length: Array) -> base.State:
        values = [*(value for _, value in pairs), *[0.0] * none]
        ids = [*tokens, *[vocab_size] * none]
        row = Row(jnp.asarray(ids, jnp.int32), jnp.asarray(values, jnp.float32))
        return base.State(row)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits.at[state.row.tokens].add(state.row.values, mode="drop")

    return base.LogitsTransform(init, apply)
