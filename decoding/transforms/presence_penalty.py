"""Presence penalty: subtract a constant from every token generated so far.

Baseline; the OpenAI API's `presence_penalty`.

    z'_i = z_i - alpha * [c_i > 0]        c_i: times i was generated, alpha -> penalty

Only *generated* tokens count, as in the OpenAI API and vLLM; the prompt does not (for
the repetition penalty it does).
Deviations: none.
Cost: one pass over V; the set is V / 8 bytes a row, and as much for each tree node.
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
    family="penalty",
    data=("penalty",),
    needs=("vocab_size",),
    examples={"penalty": 0.3},
)


@struct.dataclass
class Row:
    penalty: Array  # float32[]
    seen: Array  # uint32[ceil(V / 32)]: packed set of the generated tokens


def transform(penalty: float, vocab_size: int) -> base.LogitsTransform:
    """Subtract `penalty` from generated tokens; a negative one rewards repetition."""
    if not -1e6 <= penalty <= 1e6:
        raise MethodError(
            f"presence_penalty {penalty} is outside [-1e6, 1e6]: usual values are -2 "
            "to 2; use ban_tokens to forbid tokens"
        )

    def init(tokens: Array, length: Array) -> base.State:
        generated = jnp.zeros(tokens.shape, bool)
        seen = vocab.token_set(tokens, generated, vocab_size)
        return base.State(Row(jnp.float32(penalty), seen))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        seen = vocab.members(state.row.seen, logits.shape[-1])
        return logits - state.row.penalty * seen

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        seen = vocab.insert(row.seen, token)
        return base.State(Row(row.penalty, seen), state.shared)

    return base.LogitsTransform(init, apply, advance)
