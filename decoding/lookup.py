"""Where the end of a text has stood before: what the copying drafters share."""

import jax.numpy as jnp
from jax import Array


def suffix_matches(tokens: Array, length: Array, longest: int) -> Array:
    """int32[B, T]: how many of the last tokens end, earlier in the text, at each place.

    `tokens` int32[B, T], `length` int32[B]; counts up to `longest`. The text `a b c a
    b` gives `0 2 0 0 0`: what stands at index 1 and before it equals the last two
    tokens. The text's own end does not count, nor does anything at or past `length`.
    """
    size = tokens.shape[1]
    index = jnp.arange(size, dtype=jnp.int32)
    same = index < (length - 1)[:, None]
    found = jnp.zeros(tokens.shape, jnp.int32)
    for back in range(longest):
        at = length - 1 - back
        last = jnp.take_along_axis(tokens, jnp.maximum(at, 0)[:, None], 1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)))[:, :size]
        inside = (index >= back) & (at >= 0)[:, None]
        same = same & inside & (shifted == last)
        found = found + same
    return found


def continuation(
    tokens: Array, length: Array, end: Array, size: int
) -> tuple[Array, Array]:
    """The `size` tokens after index `end` int32[B], and how many lie in the text."""
    at = end[:, None] + 1 + jnp.arange(size, dtype=jnp.int32)
    count = jnp.clip(length - 1 - end, 0, size)
    return jnp.take_along_axis(tokens, at, 1, mode="clip"), count
