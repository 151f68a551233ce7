"""Experts whose weights stay in MXFP4: a product decodes those that it reads.

A byte holds two values, the low half first: a sign bit, and one of the sizes 0, 0.5, 1,
1.5, 2, 3, 4, 6. A block of 32 values is multiplied by 2^(scale - 127). (Open Compute
Project, *Microscaling Formats (MX) Specification* 1.0, 2023.) A weight takes 4.25 bits.

Few tokens decode their own experts. Where more come, one expert at a time is decoded
and multiplied by all tokens, so that no more than one exists in full. On a mesh devices
hold whole experts, since a cut through a block of 32 would be none, and see all tokens:
one sum a layer, as after a dense feed-forward.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.distributed import sharding
from models.transformer.config import Config, Experts
from models.transformer.modules import activated

BLOCK = 32
NAME = "mxfp4"  # of `Experts.stored`
AXIS = "whole_expert"


def decoded(codes: Array, scales: Array, dtype: Any) -> Array:
    """Decode codes uint8[..., n, 16] with scales uint8[..., n]: dtype[..., 32 n].

    On the host where they are arrays of it, as when files are loaded. Scales of 0 and
    255, 2^-127 and NaN, are read as 0 and infinity.
    """
    xp: Any = np if isinstance(codes, np.ndarray) else jnp
    halves = xp.stack([codes & 15, codes >> 4], -1)
    part, power = (halves & 1).astype(xp.int32), (halves >> 1 & 3).astype(xp.int32)
    twice = xp.where(power == 0, part, (2 + part) << xp.maximum(power - 1, 0))
    values = xp.where(halves >> 3 == 1, -twice, twice).astype(xp.float32) * 0.5
    bits = scales.astype(xp.uint32) << 23  # of the power of two
    host = xp is np
    factor = (
        bits.view(np.float32) if host else lax.bitcast_convert_type(bits, "float32")
    )
    wide = values.reshape(*codes.shape[:-1], BLOCK) * factor[..., None]
    return wide.reshape(*codes.shape[:-2], -1).astype(dtype)


def shapes(config: Config, experts: Experts) -> dict[str, tuple[int, ...]]:
    """Return the params of a layer's experts: name -> shape; all are uint8."""
    count, width, dim = experts.count, experts.width, config.d_model
    up, down = (count, 2, width, dim // BLOCK), (count, dim, width // BLOCK)
    return {
        "coded_up": (*up, BLOCK // 2),
        "coded_up_scales": up,
        "coded_down": (*down, BLOCK // 2),
        "coded_down_scales": down,
    }


def mixed(
    config: Config,
    experts: Experts,
    x: Array,
    chosen: Array,
    weights: Array,
    stored: dict[str, Array],
    biases: tuple[Array, Array] | None = None,
) -> Array:
    """Return the weighted sum [B, N, D] of the chosen experts' MLPs of x [B, N, D].

    Args:
        config: for the activation.
        experts: the rules.
        x: [B, N, D].
        chosen: int32[B, N, k].
        weights: float32[B, N, k].
        stored: the params that `shapes` names.
        biases: [E, 2, F] and [E, D].
    """
    names = ("coded_up", "coded_up_scales", "coded_down", "coded_down_scales")
    arrays = tuple(stored[name] for name in names)
    ids = jnp.arange(experts.count, dtype=jnp.int32)
    rows = ("batch - -",) * 3
    whole = tuple(AXIS + " -" * (a.ndim - 1) for a in arrays)
    own = None if biases is None else (f"{AXIS} - -", f"{AXIS} -")

    def run(x: Array, chosen: Array, weights: Array, ids: Array, arrays, biases):
        few = x.shape[0] * x.shape[1] * experts.active <= len(ids)
        if few and len(ids) == experts.count:
            return _gathered(config, x, chosen, weights, arrays, biases)
        y = _each(config, x, chosen, weights, ids, arrays, biases)
        return sharding.total(y, experts.count, AXIS)

    given = (x, chosen, weights, ids, arrays, biases)
    return sharding.by_shard(run, given, (*rows, AXIS, whole, own))


def _gathered(config, x, chosen, weights, arrays, biases):
    up = decoded(arrays[0][chosen], arrays[1][chosen], x.dtype)  # [B, N, k, 2, F, D]
    h = jnp.einsum("bnd,bnkcfd->bnkcf", x, up)
    h = h if biases is None else h + biases[0][chosen]
    down = decoded(arrays[2][chosen], arrays[3][chosen], x.dtype)  # [.., D, F]
    y = jnp.einsum("bnkf,bnkdf->bnkd", activated(config, h), down)
    y = y if biases is None else y + biases[1][chosen]
    return jnp.einsum("bnkd,bnk->bnd", y, weights.astype(y.dtype))


def _each(config, x, chosen, weights, ids, arrays, biases):
    """Add up the experts `ids` int32[e], whose `arrays` and `biases` are given."""

    def add(total: Array, own: tuple) -> tuple[Array, None]:
        i, codes, bias = own
        up = decoded(codes[0], codes[1], x.dtype)  # [2, F, D]
        h = jnp.einsum("bnd,cfd->bncf", x, up)
        h = h if bias is None else h + bias[0]
        down = decoded(codes[2], codes[3], x.dtype)  # [D, F]
        y = jnp.einsum("bnf,df->bnd", activated(config, h), down)
        y = y if bias is None else y + bias[1]
        share = jnp.where(chosen == i, weights, 0.0).sum(-1)
        return total + share[..., None].astype(y.dtype) * y, None

    return jax.lax.scan(add, jnp.zeros_like(x), (ids, arrays, biases))[0]
