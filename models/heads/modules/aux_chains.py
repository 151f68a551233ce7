"""Extra nodes in chains behind the positions of a text, for heads that live in the
target's own block (PPD, Hidden Transfer): where they stand, and what they see.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.transformer import sequence_forward


def after(
    points: Array, copies: int, length: int, shape: tuple, segments: Array | None = None
) -> tuple[Array, Array, Array]:
    """Of `copies` chains of `length` nodes behind each of `points` int32[B, P].

    Returns the text's positions int32[B, T] (`shape` is [B, T]), the nodes' [B, E] and
    what they see, bool[B, E, T + E]; E = P · copies · length in that order. Node j of a
    chain behind t stands at t + 1 + j; it sees the text up to t, of its own segment,
    and the nodes of its chain up to itself.
    """
    batch, size = shape
    each = copies * length
    texts = sequence_forward.places(shape, segments)
    behind = jnp.repeat(points, each, 1)  # [B, E]
    step = jnp.tile(jnp.arange(length, dtype=jnp.int32), points.shape[1] * copies)
    positions = jnp.take_along_axis(texts, behind, 1) + 1 + step
    seen = jnp.arange(size) <= behind[..., None]
    if segments is not None:
        own = jnp.take_along_axis(segments, behind, 1)
        seen = seen & (segments[:, None] == own[..., None])
    index = jnp.arange(behind.shape[1])
    chain = index // length
    own = (chain[:, None] == chain) & (index[:, None] >= index)
    own = jnp.broadcast_to(own, (batch, *own.shape))
    return texts, positions, jnp.concatenate([seen, own], 2)


def points(batch: dict[str, Array], count: int, seed: int, room: int) -> Array:
    """`count` positions int32[B, count] of each text, `room` tokens before its end.

    By the seed and the number of the batch's first row; 0 takes every position.
    """
    rows, size = batch["tokens"].shape
    if not count:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (rows, size))
    key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])
    return jax.random.randint(key, (rows, count), 0, max(size - room, 1))
