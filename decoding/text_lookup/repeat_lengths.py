"""How long a repetition each next token would make, for penalties on repeated text."""

import jax.numpy as jnp
from flax import struct
from jax import Array, lax


@struct.dataclass
class Repeats:
    """A text, and at each of its places how many tokens agree with the text's end.

    `lengths[j]` counts the tokens that end at place j and equal as many at the end: of
    `a b c a b` they are `0 2 0 0 0`. The end itself counts 0. Tokens past the buffer
    are left out.
    """

    tokens: Array  # int32[T]
    lengths: Array  # int32[T]
    size: Array  # int32[]: tokens of the text


def begin(tokens: Array, size: Array, breakers: Array | None = None) -> Repeats:
    """Build the table of a text. ★

    Args:
        tokens: int32[T], of which the first `size` hold.
        size: int32[].
        breakers: bool[V], tokens that end a repetition and are no part of one; None:
            there are none.

    Cost: O(T) a token.
    """
    none = jnp.zeros_like(tokens, jnp.int32)
    empty = Repeats(tokens.astype(jnp.int32), none, jnp.int32(0))

    def body(i: Array, text: Repeats) -> Repeats:
        return advance(text, text.tokens[i], breakers)

    return lax.fori_loop(0, size, body, empty)


def advance(text: Repeats, token: Array, breakers: Array | None = None) -> Repeats:
    """Append `token` int32[] to the text. ★

    A place j then agrees with the end in one token more than j - 1 did, if it holds the
    token, and in none otherwise. Cost: O(T).
    """
    token = token.astype(jnp.int32)
    index = jnp.arange(text.tokens.shape[0], dtype=jnp.int32)
    before = jnp.roll(text.lengths, 1).at[0].set(0)
    same = (text.tokens == token) & (index < text.size)
    if breakers is not None:
        same &= ~breakers[token]
    return Repeats(
        text.tokens.at[text.size].set(token, mode="drop"),
        jnp.where(same, before + 1, 0),
        text.size + 1,
    )


def repeated(
    text: Repeats, vocab_size: int, window: Array | int | None = None
) -> Array:
    """Return the length of the repetition that each next token would make, int32[V]. ★

    It counts the token itself: 0 for one that does not occur, 1 for one that occurs
    after something else. After `a b c a b` they are `a` 1, `b` 1, `c` 3.

    Args:
        text: the table.
        vocab_size: V.
        window: look at this many last tokens; None: at all.
    """
    index = jnp.arange(text.tokens.shape[0], dtype=jnp.int32)
    before = jnp.roll(text.lengths, 1).at[0].set(0)
    first = 0 if window is None else text.size - window
    lengths = jnp.minimum(before, index - first) + 1
    inside = (index < text.size) & (index >= first)
    at = jnp.where(inside, text.tokens, vocab_size)
    return jnp.zeros(vocab_size, jnp.int32).at[at].max(lengths, mode="drop")
