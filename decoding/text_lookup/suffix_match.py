"""Where the end of a text has stood before: what the copying drafters share."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax


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


def last_tokens(tokens: Array, length: Array, size: int) -> Array:
    """int32[B, size]: the last tokens, the very last first; -1 before the beginning."""
    at = length[:, None] - 1 - jnp.arange(size, dtype=jnp.int32)
    found = jnp.take_along_axis(tokens, jnp.maximum(at, 0), 1)
    return jnp.where(at >= 0, found, -1)


@jax.jit
def matches(texts: Array, ends: Array, pattern: Array) -> Array:
    """int32[B, R, C]: how many tokens of `pattern` end at each place of other texts.

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
        back, same, found = carry
        shifted = lax.dynamic_slice_in_dim(padded, longest - back, size, 2)
        wanted = lax.dynamic_index_in_dim(pattern, back, 1)
        same = same & (shifted == wanted[..., None])
        return back + 1, same, found + same

    start = (jnp.int32(0), jnp.broadcast_to(inside, shape), jnp.zeros(shape, jnp.int32))
    return lax.while_loop(more, body, start)[2]


def greatest(counts: Array, k: int) -> tuple[Array, Array]:
    """The `k` greatest of int32[..., N] below 2^24, and where; of equals the first.

    As floats, which hold them exactly: XLA for CPUs sorts integers, 20 times slower.
    """
    found, at = lax.top_k(counts.astype(jnp.float32), k)
    return found.astype(jnp.int32), at


@functools.partial(jax.jit, static_argnums=(3, 4))
def best_places(
    found: Array, texts: Array, ends: Array, places: int, size: int
) -> tuple[Array, Array, Array]:
    """What followed the longest matches: `found` is what `matches` gave.

    The match lengths int32[B, K] of the `places` longest (of equals the latest; 0: no
    match), the `size` tokens after each int32[B, K, size], and how many of them there
    are int32[B, K].
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
    """bool[K, K, D]: whether two of `K` sequences agree in their first d + 1 tokens.

    `tokens` int32[K, D], of which `count` int32[K] hold. A sequence does not agree with
    itself past its end.
    """
    there = jnp.arange(tokens.shape[1], dtype=jnp.int32) < count[:, None]
    same = (tokens[:, None] == tokens[None]) & there[:, None] & there[None]
    return jnp.cumprod(same, -1).astype(bool)
