"""4-bit caches: two slots in a byte.

The bytes of a unit of 128 slots are 64 rows: row `r` holds slot `r` in its low bits and
slot `64 + r` in its high ones. Unpacked halves follow one another along slots, so that
no lane moves, whatever the width of the heads.
"""

import jax.numpy as jnp
from jax import Array, lax

UNIT = 128
DTYPE = jnp.uint8  # of a cache: two signed 4-bit numbers, -8..7


def packed(dtype) -> bool:
    """Return whether a cache of this dtype holds two slots in a byte."""
    return jnp.dtype(dtype) == DTYPE


def slots(dtype) -> int:
    """Return the number of slots in one row of a cache of this dtype."""
    return 2 if packed(dtype) else 1


def pack(values: Array) -> Array:
    """Pack whole numbers [..., S, d] from -8 to 7 into uint8[..., S / 2, d]."""
    *lead, size, dim = values.shape
    units = values.astype(jnp.int32).reshape(*lead, size // UNIT, 2, UNIT // 2, dim)
    both = (units[..., 0, :, :] & 15) | ((units[..., 1, :, :] & 15) << 4)
    return both.astype(DTYPE).reshape(*lead, size // 2, dim)


def unpack(cache: Array) -> Array:
    """Unpack uint8[..., S / 2, d] to int32[..., S, d]: the inverse of `pack`."""
    *lead, rows, dim = cache.shape
    units = cache.astype(jnp.int32).reshape(*lead, -1, UNIT // 2, dim)
    low = lax.shift_right_arithmetic(units << 28, jnp.int32(28))
    high = lax.shift_right_arithmetic(units << 24, jnp.int32(28))
    return jnp.concatenate([low, high], -2).reshape(*lead, 2 * rows, dim)
