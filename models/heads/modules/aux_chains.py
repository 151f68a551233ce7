"""Chains of extra nodes behind the positions of a text: their positions and masks.

For heads whose nodes are part of the target's own block (PPD, Hidden Transfer).
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.transformer import sequence_forward


def after(
    points: Array, copies: int, length: int, shape: tuple, segments: Array | None = None
) -> tuple[Array, Array, Array]:
    """Place `copies` chains of `length` nodes behind each of `points`.

    Node j of a chain behind t has position t + 1 + j. It sees the text of its segment
    up to t, and the nodes of its chain up to itself.

    Args:
        points: int32[B, P], indices into the text.
        copies: chains per point.
        length: nodes per chain.
        shape: the text's [B, T].
        segments: int32[B, T], of packed documents.

    Returns:
        The text's positions int32[B, T], the nodes' int32[B, E] and their mask
        bool[B, E, T + E]; E = P · copies · length in that order.
    """
    batch, size = shape
    each = copies * length
    texts = sequence_forward.places(shape, segments)
    behind = jnp.repeat(points, each, 1)  # [B, E]
    step = jnp.tile(jnp.arange(length, dtype=jnp.int32), points.shape[1] * copies)
    positions = jnp.take_along_axis(texts, behind, 1) + 1 + step
    seen = jnp.arange(size) <= behind[..., None]
    if segments is not None:
        segment = jnp.take_along_axis(segments, behind, 1)
        seen = seen & (segments[:, None] == segment[..., None])
    index = jnp.arange(behind.shape[1])
    chain = index // length
    within = (chain[:, None] == chain) & (index[:, None] >= index)
    within = jnp.broadcast_to(within, (batch, *within.shape))
    return texts, positions, jnp.concatenate([seen, within], 2)


def points(batch: dict[str, Array], count: int, seed: int, room: int) -> Array:
    """Draw `count` positions int32[B, count] of each text, `room` before its end.

    The draw depends on the seed and the number of the batch's first row. `count` 0
    takes every position.
    """
    rows, size = batch["tokens"].shape
    if not count:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (rows, size))
    key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])
    return jax.random.randint(key, (rows, count), 0, max(size - room, 1))
