"""Draw the places of a text behind which passes of several guesses are trained."""

import jax
import jax.numpy as jnp
from jax import Array, lax


def drawn(able: Array, batch: dict[str, Array], count: int, seed: int) -> Array:
    """Draw `count` places of every row without replacement, `able` ones first.

    The first places of a draw are a draw of fewer. None is made of all places: they
    are in the text's order.

    Args:
        able: float32[B, T] or bool[B, T], whether a place may be learned.
        batch: with the rows' numbers `row` int32[B], on which the draw depends, and not
            on where in a batch a row stands.
        count: at most; a row has T.
        seed: of the draw.

    Returns:
        int32[B, count], indices into the text.
    """
    length = able.shape[1]
    if count >= length:
        every = jnp.arange(length, dtype=jnp.int32)
        return jnp.broadcast_to(every, able.shape)
    key = jax.random.key(seed)

    def noise(row: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, row), (length,))

    return lax.top_k(able + jax.vmap(noise)(batch["row"]), count)[1].astype(jnp.int32)
