"""Draws of a node's children from its law."""

import jax
from jax import Array

from decoding import base, vocab
from models.errors import MethodError


def check(draw: str, offered: tuple[str, ...] = base.DRAWS) -> None:
    """Refuse a draw that is not among `offered`."""
    if draw not in offered:
        raise MethodError(f"draw={draw!r}: use one of {offered}")


def candidates(draw: str, keys: Array, logits: Array, k: int, noise: Array) -> Array:
    """Draw `k` children int32[B, w, k] of each of `w` nodes, in draw order.

    Args:
        draw: one of `base.DRAWS`.
        keys: key[B].
        logits: float32[B, w, V], warped.
        k: children of a node.
        noise: float32[B, V] of the children's position, used by COUPLED alone.
    """
    if draw == base.POINT:
        return vocab.top_k(logits, k)[1]
    if draw == base.COUPLED:
        return vocab.top_k(logits + noise[:, None], k)[1]
    if draw == base.NO_REPLACE:
        return vocab.top_k(perturbed(draw, keys, logits, noise), k)[1]
    shape = (logits.shape[1], k, logits.shape[2])
    gumbel = jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
    return vocab.gumbel_argmax(logits[:, :, None], gumbel)


def perturbed(draw: str, keys: Array, logits: Array, noise: Array) -> Array:
    """Return scores float32[B, w, V] for beams: a node's best k are `k` drawn children.

    POINT: the logits. NO_REPLACE: the logits and fresh Gumbel noise, so that the best k
    are a sample without replacement (the Gumbel-top-k trick). COUPLED: the logits and
    the position's noise. IID has no such scores.
    """
    if draw == base.POINT:
        return logits
    if draw == base.COUPLED:
        return logits + noise[:, None]
    shape = logits.shape[1:]
    return logits + jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
