"""What tests of samplers share."""

import jax
import jax.numpy as jnp
import numpy as np


def run(transform, logits, text=(0,), generated=(), aux=None, size: int = 32):
    """The logits after a prompt `text` and `generated` tokens, as numpy."""
    buffer = jnp.asarray([*text, *[0] * (size - len(text))], jnp.int32)
    state = transform.init(buffer, jnp.int32(len(text)))
    logits = jnp.asarray(logits, jnp.float32)
    for token in generated:
        state = transform.advance(state, jnp.int32(token), logits, aux or {})
    return np.asarray(transform.apply(state, logits, aux or {}))


def kept(transform, p, **fields) -> list[int]:
    """The tokens of positive probability that stay, in order."""
    return np.flatnonzero(
        np.isfinite(run(transform, jnp.log(jnp.asarray(p)), **fields))
    ).tolist()


def law(transform, p, **fields) -> np.ndarray:
    """The law that a transform makes of `p`."""
    return np.asarray(jax.nn.softmax(run(transform, jnp.log(jnp.asarray(p)), **fields)))
