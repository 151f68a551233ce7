"""Blocks of keys or values as codes of few bits, a low-rank rest, and outliers.

A block X [n, d] of n tokens is stored as

    X ~ codes * scale + low,  then  + A B^T,  A [n, r], B [d, r],  then its outliers

Codes are whole numbers from 0 to 2^bits - 1. Groups of elements share a scale and a
low: along the tokens of one channel for keys, along the channels of one token for
values. A constant group is exact. A B^T is the best approximation of what the codes
leave that a subspace iteration finds; at rank d nothing is left. The largest and the
smallest elements along the groups' axis are left out of the codes and stored as they
are.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

EPSILON = 1e-8  # the least range of a group
RANK_EPSILON = 1e-6  # of a column's length, below which nothing new is left of it
ROUNDS = 3  # of the subspace iteration
KEYS, VALUES = 0, 1  # axes of the groups: along tokens, along channels


class Rule(NamedTuple):
    """How blocks are coded."""

    bits: int  # of a code: 2, 4 or 8
    group: int  # elements that share a scale, along the channels of a value
    rank: int  # r
    outliers: float  # share of the elements of a vector, half at each end


class Codes(NamedTuple):
    """Coded blocks [..., n, d]; m vectors of L elements lie along the groups' axis."""

    codes: Array  # uint8[..., m, L * bits / 8]
    scale: Array  # [..., m, L / group]
    low: Array  # [..., m, L / group]
    tokens: Array  # [..., n, r]: A
    channels: Array  # [..., d, r]: B
    exact: Array  # [..., m, 2 k]: outliers
    at: Array  # uint8[..., m, 2 k]: where they lie in their vectors


def ends(rule: Rule, length: int) -> int:
    """Return k, the outliers at each end of a vector of `length` elements."""
    return -(-int(round(rule.outliers * length * 1e6)) // 2_000_000)


def pack(codes: Array, bits: int) -> Array:
    """Pack whole numbers [..., L] into uint8[..., L * bits / 8].

    Byte j holds the elements j, j + L / p, ... of p = 8 / bits parts, lowest bits
    first, so that unpacked parts follow one another.
    """
    per = 8 // bits
    parts = jnp.split(codes.astype(jnp.uint8), per, -1)
    packed = parts[0]
    for i, part in enumerate(parts[1:], 1):
        packed = packed | (part << (bits * i))
    return packed


def unpack(packed: Array, bits: int) -> Array:
    """Unpack uint8[..., L * bits / 8] to uint8[..., L]: the inverse of `pack`."""
    most = jnp.uint8(2**bits - 1)
    parts = [(packed >> (bits * i)) & most for i in range(8 // bits)]
    return jnp.concatenate(parts, -1)


def empty(rule: Rule, axis: int, lead: tuple[int, ...], n: int, d: int, dtype) -> Codes:
    """Make the arrays of blocks [*lead, n, d]; scales and factors are of `dtype`."""
    x = jax.ShapeDtypeStruct((*lead, n, d), dtype)
    like = jax.eval_shape(lambda x: compress(x, rule, axis), x)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def compress(x: Array, rule: Rule, axis: int) -> Codes:
    """Code blocks [..., n, d]; scales, factors and outliers have the dtype of `x`."""
    whole = x.astype(jnp.float32)
    y = whole.swapaxes(-1, -2) if axis == KEYS else whole
    length = y.shape[-1]
    group = length if axis == KEYS else rule.group
    k = ends(rule, length)
    order = jnp.argsort(y, -1, stable=True)
    at = jnp.concatenate([order[..., :k], order[..., length - k :]], -1)
    exact = jnp.take_along_axis(y, at, -1)
    mean = y.mean(-1, keepdims=True)
    inner = _put(y, at, jnp.broadcast_to(mean, at.shape)) if k else y
    grouped = inner.reshape(*inner.shape[:-1], -1, group)
    least, most = grouped.min(-1), grouped.max(-1)
    levels = 2**rule.bits - 1
    # What is stored is rounded; codes and the rest are those of the rounded numbers.
    low = least.astype(x.dtype)
    scale = (jnp.maximum(most - least, EPSILON) / levels).astype(x.dtype)
    offset = grouped - low.astype(jnp.float32)[..., None]
    numbers = jnp.round(offset / scale.astype(jnp.float32)[..., None])
    numbers = jnp.clip(numbers, 0, levels).reshape(y.shape)
    coded = Codes(
        pack(numbers, rule.bits),
        scale,
        low,
        jnp.zeros((*x.shape[:-1], 0), x.dtype),
        jnp.zeros((*x.shape[:-2], x.shape[-1], 0), x.dtype),
        exact.astype(x.dtype),
        at.astype(jnp.uint8),
    )
    if not rule.rank:
        return coded
    rest = whole - expand(coded, rule, axis)
    a, b = low_rank(rest, rule.rank)
    return coded._replace(tokens=a.astype(x.dtype), channels=b.astype(x.dtype))


def expand(coded: Codes, rule: Rule, axis: int) -> Array:
    """Return the blocks float32[..., n, d] that `coded` stands for."""
    numbers = unpack(coded.codes, rule.bits).astype(jnp.float32)
    length = numbers.shape[-1]
    wide = lambda x: x.astype(jnp.float32)[..., None]
    grouped = numbers.reshape(*numbers.shape[:-1], coded.scale.shape[-1], -1)
    y = (grouped * wide(coded.scale) + wide(coded.low)).reshape(numbers.shape)
    turned = lambda x: x.swapaxes(-1, -2) if axis == KEYS else x
    if coded.tokens.shape[-1]:
        factors = (x.astype(jnp.float32) for x in coded[3:5])
        product = jnp.einsum("...nr,...dr->...nd", *factors, precision="highest")
        y = y + turned(product)
    if ends(rule, length):
        y = _put(y, coded.at.astype(jnp.int32), coded.exact.astype(jnp.float32))
    return turned(y)


def low_rank(x: Array, rank: int) -> tuple[Array, Array]:
    """Approximate float32[..., n, d] by A B^T; return A [..., n, r], B [..., d, r].

    The columns of A are orthonormal. They are made so in every round: the powers of
    the matrix alone would lose what is small.
    """
    d = x.shape[-1]
    turned = x.swapaxes(-1, -2)
    times = lambda a, b: jnp.matmul(a, b, precision="highest")
    start = jax.random.normal(jax.random.key(0), (d, rank), jnp.float32)
    b = jnp.broadcast_to(start, (*x.shape[:-2], d, rank))
    for i in range(ROUNDS):
        a = orthonormal(times(x, b))
        b = times(turned, a)
        if i < ROUNDS - 1:
            b = orthonormal(b)
    return a, b


def orthonormal(x: Array) -> Array:
    """Orthonormalise the columns of float32[..., n, r], one after the other.

    Each is projected twice, as one projection leaves rounding errors that grow. A
    column of what the ones before span, but for rounding, becomes 0. No LAPACK: on CPUs
    its batches wait for threads of the pool that runs the program, which then stands
    still (jaxlib 0.10.2, two cores).
    """
    length = lambda v: jnp.sqrt((v * v).sum(-1, keepdims=True))
    dot = functools.partial(jnp.einsum, precision="highest")

    def column(j: Array, q: Array) -> Array:
        v = first = x[..., j]
        for _ in range(2):
            v = v - dot("...nr,...r->...n", q, dot("...nr,...n->...r", q, v))
        size = length(v)
        some = size > RANK_EPSILON * length(first)
        return q.at[..., j].set(jnp.where(some, v / jnp.where(some, size, 1.0), 0.0))

    return lax.fori_loop(0, x.shape[-1], column, jnp.zeros_like(x))


def bits_per_element(rule: Rule, axis: int, n: int, d: int, width: int) -> float:
    """Count the bits of an element of blocks [n, d], side arrays in `width` bits."""
    length = n if axis == KEYS else d
    group = n if axis == KEYS else rule.group
    sides = 2 * width / group + 2 * ends(rule, length) * (width + 8) / length
    return rule.bits + sides + width * rule.rank * (n + d) / (n * d)


def _put(x: Array, at: Array, new: Array) -> Array:
    return jnp.put_along_axis(x, at, new, -1, inplace=False)
