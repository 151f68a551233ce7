"""Small programs whose bundles are counted."""

import jax
import jax.numpy as jnp
from jax import Array, lax


def scatter(x: Array, at: Array, values: Array) -> Array:
    """Add values [n] to x, at places [n]."""
    return x.at[at].add(values)


def products(x: Array, turns: Array) -> Array:
    """Multiply x [n, n] by itself seven times, and then `turns` times."""
    x = lax.fori_loop(0, 7, lambda i, x: jnp.sin(x @ x), x)
    step = lambda carry: (jnp.cos(carry[0] @ carry[0]), carry[1] - 1)
    return lax.while_loop(lambda carry: carry[1] > 0, step, (x, turns))[0]


def arrays(*shapes: tuple[int, ...], dtype: str = "int32") -> list:
    """Return shapes of arrays."""
    return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
