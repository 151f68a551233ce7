"""Codes of keys and values: quantisation to small whole numbers, and its inverse.

    k[s, c] = code[s, c] * channel[c] * scale[s],    channel[c] = 2^round(log2 max |k|)
    v[s, c] = code[s, c] * scale[s]

`channel` comes from a row's first group of tokens: keys have channels that are large in
every token (KIVI, section 3). The factors are the same for all tokens of a row, so they
can be multiplied into the query, where powers of two round nothing. The kernels then
need no product for each key element.
"""

import jax.numpy as jnp
from jax import Array

from kernels import int4_packing

GROUP = int4_packing.UNIT  # tokens that are quantised together


def most(dtype) -> int:
    """Return the greatest code."""
    return 7 if int4_packing.packed(dtype) else 127


def channels(k: Array) -> Array:
    """Compute the channels' factors float32[..., d] of keys [..., GROUP, d]."""
    peak = jnp.abs(k.astype(jnp.float32)).max(-2)
    power = jnp.round(jnp.log2(jnp.where(peak > 0, peak, 1.0)))
    return jnp.exp2(jnp.clip(power, -60, 60))


def keys(k: Array, channel: Array, dtype) -> tuple[Array, Array]:
    """Quantise keys [..., S, d]; return codes and scales float32[..., S]."""
    return values(k.astype(jnp.float32) / channel[..., None, :], dtype)


def values(v: Array, dtype) -> tuple[Array, Array]:
    """Quantise values [..., S, d]; return codes and scales float32[..., S]."""
    codes, scale = numbers(v, dtype)
    return stored(codes, dtype), scale


def numbers(v: Array, dtype) -> tuple[Array, Array]:
    """Quantise as `values` does, to whole numbers int8[..., S, d], not packed."""
    v = v.astype(jnp.float32)
    peak = jnp.abs(v).max(-1)
    scale = jnp.where(peak > 0, peak / most(dtype), 1.0)
    codes = jnp.clip(jnp.round(v / scale[..., None]), -most(dtype), most(dtype))
    return codes.astype(jnp.int8), scale


def stored(numbers: Array, dtype) -> Array:
    """Return the codes of whole numbers [..., S, d]."""
    packs = int4_packing.packed(dtype)
    return int4_packing.pack(numbers) if packs else numbers.astype(dtype)


def whole(codes: Array) -> Array:
    """Return the whole numbers int8[..., S, d] of codes: the inverse of `stored`."""
    packs = int4_packing.packed(codes.dtype)
    return int4_packing.unpack(codes).astype(jnp.int8) if packs else codes


def widen(codes: Array, scale: Array | None) -> Array:
    """Dequantise codes to float32[..., S, d], without the channels' factors.

    Without a scale they are values already.
    """
    values = whole(codes).astype(jnp.float32)
    return values if scale is None else values * scale[..., None]
