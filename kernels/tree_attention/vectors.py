"""Loops and lanes that the TPU kernels of attention share."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from kernels.tree_attention import layout

UNROLLED = 8  # folds side by side: one's products hide behind another's exponentials


def each(
    count: int,
    body: Callable,
    before: Callable | None = None,
    unrolled: int = UNROLLED,
) -> None:
    """Run `body(i)` for i below `count`, at most `unrolled` side by side.

    With `before`, run `body(i, before(i))`, and `before` one turn ahead: the compiler
    keeps that order, so that a product fills the wait for the turn before.
    """
    many = max(n for n in range(1, unrolled + 1) if count % n == 0)

    def several(j, _):
        if before is None:
            for i in range(many):
                body(j * many + i)
            return 0
        ready = before(j * many)
        for i in range(many):
            now = ready
            if i + 1 < many:
                ready = before(j * many + i + 1)
            body(j * many + i, now)
        return 0

    if many == count:
        several(0, 0)
    else:
        lax.fori_loop(0, count // many, several, 0)


def across(x: Array, width: int) -> Array:
    """Spread `x` [rows, 128], the same in every lane, over `width` lanes."""
    if width % layout.LANES == 0:
        return jnp.concatenate([x] * (width // layout.LANES), 1)
    if width < layout.LANES:
        return x[:, :width]
    return jnp.broadcast_to(x[:, :1], (x.shape[0], width))


def lane_sums(x: Array) -> Array:
    """Return [rows, 128], whose sums over lanes are those of `x` [rows, width]."""
    rows, width = x.shape
    lanes = layout.LANES
    if width % lanes == 0:
        return functools.reduce(
            jnp.add, [x[:, i : i + lanes] for i in range(0, width, lanes)]
        )
    lane = lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
    return jnp.where(lane == 0, x.sum(1, keepdims=True), 0.0)
