"""No repeated n-grams: forbid each token that would complete one a second time.

Paulus, Xiong, Socher, *A Deep Reinforced Model for Abstractive Summarization*, 2018,
arXiv 1705.04304, section 2.5, for trigrams; any n as in HF transformers.

    forbid v  iff  (x_{t-n+2} .. x_t, v) occurs in x_1 .. x_t        n -> n

The prompt counts, as in HF transformers.
Deviations: where every token would be forbidden, none is.
Cost: O(T) a token; 8 T bytes a row, and as much for each tree node.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.text_lookup import repeat_lengths
from models.errors import MethodError

CARD = Card(
    paper="Deep reinforced summarization, arXiv 1705.04304",
    guarantee=base.LAW,
    family="penalty",
    data=("n",),
    examples={"n": 4},
    sources=("paulus2018deep",),
)


@struct.dataclass
class Row:
    n: Array  # int32[]
    text: repeat_lengths.Repeats


def transform(n: int = 3) -> base.LogitsTransform:
    """Forbid a second occurrence of every n-gram; `n` >= 1."""
    if n != int(n) or n < 1:
        raise MethodError(f"n={n}: use a whole number of tokens, 1 or more")

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(jnp.int32(n), repeat_lengths.begin(tokens, length)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        row = state.row
        made = repeat_lengths.repeated(row.text, logits.shape[-1])
        return vocab.keep(logits, made < row.n)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        text = repeat_lengths.advance(state.row.text, token)
        return base.State(Row(state.row.n, text), state.shared)

    return base.LogitsTransform(init, apply, advance)
