"""Numbers that look random and depend on what they belong to alone.

A slot's noise must not depend on the round, the batch or the chunk that asks for it, so
it is a hash of the layer, the head and the tokens, and not a draw of a key.
"""

import jax.numpy as jnp
from jax import Array

LEAST = 2.0**-24  # no uniform number is 0 or 1


def uniform(*parts: Array | int) -> Array:
    """Return float32 numbers in (0, 1), one for each element of the integer `parts`.

    The parts broadcast. Equal parts give equal numbers.
    """
    state = jnp.uint32(0x9E3779B9)
    for part in parts:
        bits = jnp.asarray(part).astype(jnp.uint32) + jnp.uint32(0x85EBCA6B)
        state = _mix(state ^ _mix(bits))
    return (state >> 8).astype(jnp.float32) * 2.0**-24 + LEAST / 2


def gumbel(*parts: Array | int) -> Array:
    """Return standard Gumbel noise; see `uniform`."""
    return -jnp.log(-jnp.log(uniform(*parts)))


def _mix(x: Array) -> Array:
    """Hash uint32 (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
