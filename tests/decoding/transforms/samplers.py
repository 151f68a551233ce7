"""What tests of samplers share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.lru_cache(32)
def jitted(transform) -> tuple:
    """A transform's functions, compiled once for all texts."""
    advance = transform.advance
    return (
        jax.jit(transform.init),
        None if advance is None else jax.jit(advance),
        jax.jit(transform.apply),
    )


def run(transform, logits, text=(0,), generated=(), aux=None, size: int = 32):
    """The logits after a prompt `text` and `generated` tokens, as numpy."""
    init, advance, apply = jitted(transform)
    buffer = np.zeros(size, np.int32)
    buffer[: len(text)] = text
    state = init(buffer, np.int32(len(text)))
    logits, aux = jnp.asarray(logits, jnp.float32), aux or {}
    for token in generated:
        state = advance(state, np.int32(token), logits, aux)
    return np.asarray(apply(state, logits, aux))


def kept(transform, p, **fields) -> list[int]:
    """The tokens of positive probability that stay, in order."""
    out = run(transform, np.log(np.asarray(p)), **fields)
    return np.flatnonzero(np.isfinite(out)).tolist()


def law(transform, p, **fields) -> np.ndarray:
    """The law that a transform makes of `p`."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(p))
    return np.asarray(jax.nn.softmax(run(transform, logits, **fields)))
