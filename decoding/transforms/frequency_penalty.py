"""Frequency penalty: subtract a constant for each time a token was generated.

Baseline; the OpenAI API's `frequency_penalty`.

    z'_i = z_i - alpha * c_i        c_i: times i was generated, alpha -> penalty

Only *generated* tokens count, as in the OpenAI API and vLLM; the prompt does not.
Deviations: none.
Cost: one pass over V; the counts are 4 V bytes a row, and as much for each tree node.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="penalty",
    data=("penalty",),
    needs=("vocab_size",),
    examples={"penalty": 0.5},
)


@struct.dataclass
class Row:
    penalty: Array  # float32[]
    counts: Array  # int32[V]: times each token was generated


def transform(penalty: float, vocab_size: int) -> base.LogitsTransform:
    """Subtract `penalty` for each occurrence; a negative one rewards repetition."""
    if not -1e6 <= penalty <= 1e6:
        raise MethodError(
            f"frequency_penalty {penalty} is outside [-1e6, 1e6]: usual values are -2 "
            "to 2; use ban_tokens to forbid tokens"
        )

    def init(tokens: Array, length: Array) -> base.State:
        counts = jnp.zeros((vocab_size,), jnp.int32)
        return base.State(Row(jnp.float32(penalty), counts))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits - state.row.penalty * state.row.counts

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        counts = row.counts.at[token].add(1, mode="drop")
        return base.State(Row(row.penalty, counts), state.shared)

    return base.LogitsTransform(init, apply, advance)
