"""Constraints of canvases, whose positions take their tokens in any order.

A *canvas* of a constraint is int32[n], the tokens behind a row's prompt: OPEN where one
is open, OUTSIDE behind the canvas's end. A text fills it, or ends before its end with
an end of sequence, behind which nothing else stands. An open position takes exactly one
token, so a gap of m positions is m tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

OPEN, OUTSIDE = -1, -2


class Holes(NamedTuple):
    """What a constraint lets stand where; all functions are ★.

    - `init(tokens[T], length) -> State`, behind the prompt; no commit changes it.
    - `possible(state, canvas) -> bool[]`: whether some tokens fill the open positions.
    - `allowed(state, canvas) -> uint32[n, W]`: bits of tokens, least first: with which
      of them in place of a position's own entry the canvas is possible; W = ⌈V / 32⌉.
    - `first(state, canvas, position, tokens int32[M]) -> int32[]`: the first of some
      tokens that may stand at a position; -1: none may, or the position is not one of
      the canvas's. Where the host answers, it stands in place of `allowed`.
    """

    init: Callable[[Array, Array], Any]
    possible: Callable[[Any, Array], Array]
    allowed: Callable[[Any, Array], Array] | None = None
    first: Callable[[Any, Array, Array, Array], Array] | None = None


def behind(tokens: Array, known: Array, start: Array, limit: Array, size: int) -> Array:
    """★ Return a row's canvas, int32[size].

    Args:
        tokens: int32[T].
        known: bool[T].
        start: int32[], where it begins.
        limit: int32[], where it ends.
        size: n.
    """
    index = start + jnp.arange(size, dtype=jnp.int32)
    at = jnp.minimum(index, tokens.shape[0] - 1)
    text = jnp.where(known[at], tokens[at], OPEN)
    return jnp.where(index < limit, text, OUTSIDE).astype(jnp.int32)
