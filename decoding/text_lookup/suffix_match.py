"""Earlier occurrences of a text's end, for the drafters that copy."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax


def suffix_matches(tokens: Array, length: Array, longest: int) -> Array:
    """Count, int32[B, T], how many of the last tokens also end at each earlier place.

    `tokens` int32[B, T], `length` int32[B]; counts up to `longest`. The text `a b c a
    b` gives `0 2 0 0 0`: the two tokens that end at index 1 equal the last two. The
    text's own end does not count, nor does anything at or past `length`.
    """
    size = tokens.shape[1]
    index = jnp.arange(size, dtype=jnp.int32)
    same = index < (length - 1)[:, None]
    lengths = jnp.zeros(tokens.shape, jnp.int32)
    for back in range(longest):
        at = length - 1 - back
        last = jnp.take_along_axis(tokens, jnp.maximum(at, 0)[:, None], 1)
        shifted = jnp.pad(tokens, ((0, 0), (back, 0)))[:, :size]
        inside = (index >= back) & (at >= 0)[:, None]
        same = same & inside & (shifted == last)
        lengths = lengths + same
    return lengths


def continuation(
    tokens: Array, length: Array, end: Array, size: int
) -> tuple[Array, Array]:
    """Return the `size` tokens after index `end` int32[B], and how many are valid."""
    at = end[:, None] + 1 + jnp.arange(size, dtype=jnp.int32)
    count = jnp.clip(length - 1 - end, 0, size)
    return jnp.take_along_axis(tokens, at, 1, mode="clip"), count


def last_tokens(tokens: Array, length: Array, size: int) -> Array:
    """Return the last tokens int32[B, size], latest first; -1 before the text."""
    at = length[:, None] - 1 - jnp.arange(size, dtype=jnp.int32)
    last = jnp.take_along_axis(tokens, jnp.maximum(at, 0), 1)
    return jnp.where(at >= 0, last, -1)


@jax.jit
def matches(texts: Array, ends: Array, pattern: Array) -> Array:
    """Count, int32[B, R, C], how many tokens of `pattern` end at each place of texts.

    `texts` int32[B or 1, R, C] are `R` texts of `ends` int32[B or 1, R] tokens;
    `pattern` int32[B, M] is read from its start, the last token first (`last_tokens`).
    A text's last place does not count: nothing follows it. The work ends with the
    longest match.
    """
    size, longest = texts.shape[2], pattern.shape[1]
    padded = jnp.pad(texts, ((0, 0), (0, 0), (longest, 0)), constant_values=-2)
    inside = jnp.arange(size, dtype=jnp.int32) < ends[..., None] - 1
    shape = (pattern.shape[0], *texts.shape[1:])

    def more(carry: tuple) -> Array:
        back, same, _ = carry
        return (back < longest) & same.any()

    def body(carry: tuple) -> tuple:
        back, same, lengths = carry
        shifted = lax.dynamic_slice_in_dim(padded, longest - back, size, 2)
        token = lax.dynamic_index_in_dim(pattern, back, 1)
        same = same & (shifted == token[..., None])
        return back + 1, same, lengths + same

    start = (jnp.int32(0), jnp.broadcast_to(inside, shape), jnp.zeros(shape, jnp.int32))
    return lax.while_loop(more, body, start)[2]


def greatest(counts: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` greatest of int32[..., N] below 2^24, and their places.

    Of equals the first. Compared as floats, which hold such integers exactly: XLA for
    CPUs sorts integers, 20 times slower.
    """
    values, at = lax.top_k(counts.astype(jnp.float32), k)
    return values.astype(jnp.int32), at


@functools.partial(jax.jit, static_argnums=(3, 4))
def best_places(
    found: Array, texts: Array, ends: Array, places: int, size: int
) -> tuple[Array, Array, Array]:
    """Return the tokens that followed the longest matches.

    Args:
        found: int32[B, R, C], the match lengths that `matches` returned.
        texts: as in `matches`.
        ends: as in `matches`.
        places: K, the most matches to return; of equals the latest.
        size: tokens to return after a match.

    Returns:
        The match lengths int32[B, K] (0: no match), the tokens after each match
        int32[B, K, size], and the number of valid ones int32[B, K].
    """
    batch, _, width = found.shape
    flat = found.reshape(batch, -1)
    most = min(places, flat.shape[1])
    length, back = greatest(flat[:, ::-1], most)
    at = flat.shape[1] - 1 - back
    row = jnp.arange(batch)[:, None] * (texts.shape[0] > 1)
    left = ends[row, at // width] - 1 - at % width
    count = jnp.where(length > 0, jnp.clip(left, 0, size), 0)
    after = at[..., None] + 1 + jnp.arange(size, dtype=jnp.int32)
    stored = texts.reshape(texts.shape[0], -1)
    return length, stored.at[row[..., None], after].get(mode="clip"), count


def shared_prefixes(tokens: Array, count: Array) -> Array:
    """Compare `K` sequences pairwise: do their first d + 1 tokens agree, bool[K, K, D].

    `tokens` int32[K, D], of which `count` int32[K] hold. A sequence does not agree with
    itself past its end.
    """
    there = jnp.arange(tokens.shape[1], dtype=jnp.int32) < count[:, None]
    same = (tokens[:, None] == tokens[None]) & there[:, None] & there[None]
    return jnp.cumprod(same, -1).astype(bool)
