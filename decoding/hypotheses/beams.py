"""What beam searches share: candidates, normalised scores, and when a search ends."""

import math

import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab
from decoding.hypotheses.nodes import View
from decoding.hypotheses.pool import NONE, Pool
from models.errors import MethodError


def check(width: int, length_penalty: float, early_stopping: bool | str) -> None:
    """Refuse numbers that mean nothing, by a MethodError."""
    if width != int(width) or width < 1:
        raise MethodError(f"width={width}: use a whole number of beams, 1 or more")
    if not math.isfinite(length_penalty):
        raise MethodError(f"length_penalty={length_penalty}: use a finite number")
    if early_stopping not in (True, False, "never"):
        raise MethodError(
            f'early_stopping={early_stopping!r}: use True, False or "never"'
        )


def normalised(sums: Array, length: Array, alpha: Array, gnmt: bool) -> Array:
    """Divide sums of log-probabilities by a power of the length, float32[...]."""
    size = (5.0 + length) / 6.0 if gnmt else length.astype(jnp.float32)
    return sums / size**alpha


def candidates(key: Array | None, sums: Array, count: int) -> tuple:
    """★ Return the best `count` of sums [K, V]: lanes, tokens, sums, best first.

    With a key they are drawn without replacement from softmax(sums), in draw order.
    """
    size, ranked = sums.shape[-1], sums
    if key is not None:
        ranked = jnp.where(sums > NONE / 2, sums + vocab.gumbel(key, sums.shape), sums)
    few = min(count, size)
    values, tokens = vocab.top_k(ranked, few)
    _, at = lax.top_k(values.reshape(-1), count)
    lane, token = (at // few).astype(jnp.int32), tokens.reshape(-1)[at]
    return lane, token, sums[lane, token]


def finished(
    view: View, lane: Array, token: Array, score: Array, enters: Array
) -> Pool:
    """★ Return the texts that end with `token` [C] behind `lane`, where they enter."""
    return Pool(
        jnp.where(enters, view.lanes[lane], -1),
        token,
        view.raw[lane, token],
        jnp.where(enters, score, NONE),
    )


def reach(view: View, alpha: Array, early_stopping: bool | str) -> Array:
    """★ Return the length that a running beam's hope is normalised by, int32[]."""
    length = view.depth.max() + 1
    if early_stopping == "never":
        return jnp.where(alpha > 0, view.limit, length)
    return length


def ends(pool: Pool, hope: Array, early_stopping: bool | str) -> Array:
    """★ Tell whether a pool ends its search, bool[]: `hope` is the best yet to come."""
    if early_stopping is True:
        return pool.full
    return pool.full & (pool.score[-1] >= hope)
