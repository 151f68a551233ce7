"""Minimum length: no end-of-sequence token before n new tokens.

Baseline; HF transformers' `min_new_tokens` (MinNewTokensLengthLogitsProcessor).

    z'_i = -inf  iff  i is an end-of-sequence token and fewer than n tokens came

    n -> count

Deviations: if only an end-of-sequence token is allowed (by a constraint whose string is
complete), the logits are returned unchanged, and the text ends early.
Cost: a scatter of as many values as there are end-of-sequence tokens, one reduction.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="bias",
    data=("count",),
    needs=("eos",),
    examples={"count": 5},
)


@struct.dataclass
class Row:
    left: Array  # int32[]: number of tokens before the text may end


def transform(count: int, eos: tuple[int, ...]) -> base.LogitsTransform:
    """Forbid the tokens `eos` until `count` >= 0 tokens were generated."""
    if not (count >= 0 and count % 1 == 0):
        raise MethodError(
            f"min_new_tokens {count} is not a count: use an integer, 0 or more"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.int32(count)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        ends = jnp.zeros(logits.shape, bool).at[jnp.asarray(eos, jnp.int32)].set(True)
        return vocab.keep(logits, ~ends | (state.row.left <= 0))

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        return base.State(Row(jnp.maximum(state.row.left - 1, 0)), state.shared)

    return base.LogitsTransform(init, apply, advance)
