"""How the children of a node are drawn from its law."""

import jax
from jax import Array

from decoding import base, vocab
from models.errors import MethodError


def check(draw: str) -> None:
    if draw not in base.DRAWS:
        raise MethodError(f"draw={draw!r}: use one of {base.DRAWS}")


def candidates(draw: str, keys: Array, logits: Array, k: int, noise: Array) -> Array:
    """`k` children int32[B, w, k] of each of `w` nodes, in draw order.

    `keys` [B]; `logits` float32[B, w, V], warped; `noise` float32[B, V] of the
    children's position, used by COUPLED alone.
    """
    if draw == base.POINT:
        return vocab.top_k(logits, k)[1]
    if draw == base.COUPLED:
        return vocab.top_k(logits + noise[:, None], k)[1]
    width, size = logits.shape[1:]
    shape = (width, k, size) if draw == base.IID else (width, size)
    gumbel = jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
    if draw == base.IID:
        return vocab.gumbel_argmax(logits[:, :, None], gumbel)
    return vocab.top_k(logits + gumbel, k)[1]
