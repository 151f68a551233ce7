"""How keys and values become small whole numbers, and numbers again.

    k[s, c] = code[s, c] * channel[c] * scale[s],    channel[c] = 2^round(log2 max |k|)
    v[s, c] = code[s, c] * scale[s]

`channel` is taken from a row's first group of tokens: keys have channels that are
large in every token (KIVI, section 3). Being powers of two, its factors round nothing
where they are moved into the query, and being the row's, they can be; the kernels then
need no product for each key element.
"""

import jax.numpy as jnp
from jax import Array

from kernels import int4_packing

GROUP = int4_packing.UNIT  # tokens that are quantised together


def most(dtype) -> int:
    """The greatest code."""
    return 7 if int4_packing.packed(dtype) else 127


def channels(k: Array) -> Array:
    """float32[..., d]: the factors of the channels of keys [..., GROUP, d]."""
    peak = jnp.abs(k.astype(jnp.float32)).max(-2)
    power = jnp.round(jnp.log2(jnp.where(peak > 0, peak, 1.0)))
    return jnp.exp2(jnp.clip(power, -60, 60))


def keys(k: Array, channel: Array, dtype) -> tuple[Array, Array]:
    """Codes of keys [..., S, d] and their scales float32[..., S]."""
    return values(k.astype(jnp.float32) / channel[..., None, :], dtype)


def values(v: Array, dtype) -> tuple[Array, Array]:
    """Codes of values [..., S, d], a scale a token, float32[..., S]."""
    v = v.astype(jnp.float32)
    peak = jnp.abs(v).max(-1)
    scale = jnp.where(peak > 0, peak / most(dtype), 1.0)
    codes = jnp.clip(jnp.round(v / scale[..., None]), -most(dtype), most(dtype))
    return (
        int4_packing.pack(codes) if int4_packing.packed(dtype) else codes.astype(dtype)
    ), scale


def widen(codes: Array, scale: Array) -> Array:
    """float32[..., S, d]: what the codes stand for, but for the channels' factors."""
    if int4_packing.packed(codes.dtype):
        codes = int4_packing.unpack(codes)
    return codes.astype(jnp.float32) * scale[..., None]
