"""Don't repeat yourself (DRY): a penalty that grows with the repetition's length.

Weidmann, *DRY: A modern repetition penalty that reliably prevents looping*, 2024, pull
request 5677 of github.com/oobabooga/text-generation-webui. Let m be the longest text
that ends before v somewhere and also ends the text so far. Then

    z'_v = z_v - multiplier * base^(m - allowed)   if m >= allowed
           z_v                                     otherwise

base -> growth; allowed -> allowed_length. `breakers` end a repetition, are never part
of one and are never penalised. Matches count up to 50 tokens.
Deviations: none.
Cost: O(T) a token; 8 T bytes a row, and as much for each tree node.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.text_lookup import repeat_lengths
from models.errors import MethodError
from models.text import hf_tokenizer

CARD = Card(
    paper="Do not repeat yourself (DRY)",
    guarantee=base.LAW,
    family="penalty",
    data=("multiplier", "growth", "allowed_length", "window"),
    needs=("vocab_size", "tokenizer"),
    examples={"allowed_length": 2, "breakers": (6,)},
    sources=("weidmann2024dry",),
)

LONGEST = 50  # of a match, so that the power stays finite


@struct.dataclass
class Row:
    multiplier: Array  # float32[]
    growth: Array  # float32[]
    allowed: Array  # int32[]
    window: Array  # int32[]: 0: the whole text
    text: repeat_lengths.Repeats


@struct.dataclass
class Shared:
    breakers: Array  # bool[V]


def transform(
    vocab_size: int,
    tokenizer: Any,
    multiplier: float = 0.8,
    growth: float = 1.75,
    allowed_length: int = 2,
    window: int = 0,
    breakers: Sequence[int | str] = ("\n", ":", '"', "*"),
) -> base.LogitsTransform:
    """Penalise repetitions.

    Args:
        vocab_size: V.
        tokenizer: the target's, for the strings of `breakers`.
        multiplier: penalty of the shortest match that is not allowed; 0: none.
        growth: base of the power.
        allowed_length: longest match that costs nothing, plus 1.
        window: look at this many last tokens; 0: at the whole text.
        breakers: tokens, or strings whose last token is meant.
    """
    if not 0 <= multiplier <= 1e6 or not 0 < growth <= 4:
        raise MethodError(
            f"multiplier={multiplier}, growth={growth}: use a multiplier of 0 to 1e6 "
            "(0.8 is usual) and a growth above 0, at most 4 (1.75)"
        )
    counts = (allowed_length, window)
    if any(x != int(x) for x in counts) or allowed_length < 1 or window < 0:
        raise MethodError(
            f"allowed_length={allowed_length}, window={window}: use a length of 1 or "
            "more (2 is usual) and a window of 0 (the whole text) or more tokens"
        )
    mask = hf_tokenizer.token_mask("breakers", breakers, tokenizer, vocab_size)

    def init(tokens: Array, length: Array) -> base.State:
        shared = Shared(jnp.asarray(mask))
        text = repeat_lengths.begin(tokens, length, shared.breakers)
        numbers = jnp.float32(multiplier), jnp.float32(growth)
        counts = jnp.int32(allowed_length), jnp.int32(window)
        return base.State(Row(*numbers, *counts, text), shared)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        row = state.row
        window = jnp.where(row.window > 0, row.window, row.text.size)
        made = repeat_lengths.repeated(row.text, logits.shape[-1], window)
        match = jnp.minimum(made - 1, LONGEST)
        penalty = row.multiplier * row.growth ** (match - row.allowed)
        costs = (match >= row.allowed) & ~state.shared.breakers
        return jnp.where(costs, logits - penalty, logits)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        text = repeat_lengths.advance(row.text, token, state.shared.breakers)
        return base.State(row.replace(text=text), state.shared)

    return base.LogitsTransform(init, apply, advance)
