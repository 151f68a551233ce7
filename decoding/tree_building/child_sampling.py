"""How the children of a node are drawn from its law."""

import jax
from jax import Array

from decoding import base, vocab
from models.errors import MethodError


def check(draw: str, offered: tuple[str, ...] = base.DRAWS) -> None:
    if draw not in offered:
        raise MethodError(f"draw={draw!r}: use one of {offered}")


def candidates(draw: str, keys: Array, logits: Array, k: int, noise: Array) -> Array:
    """`k` children int32[B, w, k] of each of `w` nodes, in draw order.

    `keys` [B]; `logits` float32[B, w, V], warped; `noise` float32[B, V] of the
    children's position, used by COUPLED alone.
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
    """float32[B, w, V] whose best k are `k` children: what a beam compares.

    The logits for POINT; with fresh Gumbel noise for NO_REPLACE, which makes the best k
    a sample without replacement (the Gumbel-top-k trick); with the noise of the
    position for COUPLED. There is no such thing for IID.
    """
    if draw == base.POINT:
        return logits
    if draw == base.COUPLED:
        return logits + noise[:, None]
    shape = logits.shape[1:]
    return logits + jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
