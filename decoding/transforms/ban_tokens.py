"""Bans: tokens that must not occur, and sequences that must not be completed.

Baseline; HF transformers' `bad_words_ids` (NoBadWordsLogitsProcessor).

    z'_i = -inf  iff  (i,) is banned,
                      or (w_1 .. w_m, i) is and the text ends in w_1 .. w_m

The text is the prompt and the generated tokens.
Deviations: if the bans would leave no token at all, the logits are returned unchanged
(HF would return NaN probabilities). A banned sequence is banned in *that tokenisation*
only; a ban of strings needs a constraint.
Cost: a mask over V, and M·W comparisons for M sequences of at most W + 1 tokens.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="baseline",
    guarantee=base.LAW,
    family="bias",
    needs=("vocab_size",),
    examples={"bans": ((3, 4), (6,), (0, 1), (1, 2), (2, 5), (5, 5, 3))},
)

_ANY, _NONE = -1, -2  # in a prefix: matches any token; in the text: before its start


@struct.dataclass
class Row:
    last: (
        Array  # int32[W]: the last tokens of the text, newest last; -2 before its start
    )


@struct.dataclass
class Shared:
    prefixes: Array  # int32[M, W]: required end of the text, -1 (any) on the left
    final: Array  # int32[M]: the token that each prefix forbids


def transform(
    bans: Sequence[int | Sequence[int]], vocab_size: int
) -> base.LogitsTransform:
    """Forbid `bans`: token ids, or sequences of token ids."""
    words = [tuple(np.atleast_1d(ban).tolist()) for ban in bans]
    for word in words:
        if not word:
            raise MethodError("ban_tokens holds an empty sequence: remove it")
        for token in word:
            if token != int(token) or not 0 <= token < vocab_size:
                raise MethodError(
                    f"ban_tokens names token {token} in {word}, no id of the "
                    f"vocabulary of {vocab_size}: remove it"
                )
    if len({word for word in words if len(word) == 1}) >= vocab_size:
        raise MethodError(
            f"ban_tokens forbids all {vocab_size} tokens: leave one at least"
        )
    width = max((len(word) - 1 for word in words), default=0)
    prefixes = np.full((len(words), width), _ANY, np.int32)
    for prefix, word in zip(prefixes, words):
        prefix[width - len(word) + 1 :] = word[:-1]
    final = np.array([word[-1] for word in words], np.int32)

    def init(tokens: Array, length: Array) -> base.State:
        at = length - width + jnp.arange(width)
        last = jnp.where(at >= 0, tokens[jnp.maximum(at, 0)], _NONE).astype(jnp.int32)
        return base.State(Row(last), Shared(jnp.asarray(prefixes), jnp.asarray(final)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        prefix_tokens = state.shared.prefixes
        hit = ((prefix_tokens == state.row.last) | (prefix_tokens == _ANY)).all(-1)
        allowed = jnp.ones(logits.shape, bool).at[state.shared.final].min(~hit)
        return vocab.keep(logits, allowed)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        last = jnp.concatenate([state.row.last[1:], token[None].astype(jnp.int32)])
        return base.State(Row(last), state.shared)

    return base.LogitsTransform(init, apply, advance if width else None)
