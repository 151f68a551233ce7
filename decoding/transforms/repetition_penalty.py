"""Repetition penalty of CTRL: shrink the logits of tokens that were seen.

Keskar, McCann, Varshney, Xiong, Socher, "CTRL: A Conditional Transformer Language Model
for Controllable Generation", 2019, arXiv 1909.05858, §4.1.

    z'_i = z_i / theta  if z_i > 0 and i was seen        theta -> penalty
    z'_i = z_i * theta  if z_i < 0 and i was seen

Seen tokens are those of the prompt and the generated text. The effect depends on the
sign of z_i, so it differs between logits and log-probabilities. This transform takes
raw logits, as HF transformers does when it samples.
Deviations: the paper divides logits of either sign, which would *reward* negative ones;
every implementation multiplies those.
Cost: one pass over V; the set is V / 8 bytes a row, and as much for each tree node.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="CTRL, arXiv 1909.05858",
    guarantee=base.LAW,
    family="penalty",
    data=("penalty",),
    needs=("vocab_size",),
    examples={"penalty": 1.2},
    sources=("keskar2019ctrl",),
)


@struct.dataclass
class Row:
    penalty: Array  # float32[]
    seen: Array  # uint32[ceil(V / 32)]: packed set of tokens


def transform(penalty: float, vocab_size: int) -> base.LogitsTransform:
    """Penalise seen tokens by `penalty` > 0; above 1 discourages, 1 is the identity."""
    if not 1e-6 <= penalty <= 1e6:
        raise MethodError(
            f"repetition_penalty {penalty} is outside [1e-6, 1e6]: 1 has no effect and "
            "usual values are 1.05 to 1.3"
        )

    def init(tokens: Array, length: Array) -> base.State:
        live = jnp.arange(tokens.shape[-1]) < length
        seen = vocab.token_set(tokens, live, vocab_size)
        return base.State(Row(jnp.float32(penalty), seen))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        seen = vocab.members(state.row.seen, logits.shape[-1])
        theta = state.row.penalty
        return jnp.where(
            seen, jnp.where(logits < 0, logits * theta, logits / theta), logits
        )

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        seen = vocab.insert(row.seen, token)
        return base.State(Row(row.penalty, seen), state.shared)

    return base.LogitsTransform(init, apply, advance)
