"""Latent keys and values that groups of KV heads share, expanded when they are read.

`t` KV heads (`Config.kv_shared`) share a latent key c and a latent value of `r` numbers
(`Config.kv_rank`). They are stored in a dense layer of G / t heads of r numbers. The
key of head i is c B_i, rotated by its token's position; c itself is not rotated, since
a rotation does not commute with the basis. Values are not expanded: the model's output
projection has absorbed their basis. `models/surgery/kv_heads` makes such weights.

Cost: n · r · d · G products a call and layer to expand n slots, and the expanded keys
[B, G, S, d] of one layer at a time.
"""

import jax.numpy as jnp
from jax import Array


def expand(k: Array, v: Array, basis: Array) -> tuple[Array, Array]:
    """Return keys [B, G, S, d], not rotated, and values [B, G, S, r] of all KV heads.

    Args:
        k: latent keys [B, G / t, S, r].
        v: latent values [B, G / t, S, r].
        basis: [G / t, t, r, d].
    """
    batch, groups, slots, _ = k.shape
    copies, dim = basis.shape[1], basis.shape[3]
    keys = jnp.einsum("bgsr,gtrd->bgtsd", k, basis.astype(k.dtype))
    keys = keys.reshape(batch, groups * copies, slots, dim)
    return keys, jnp.repeat(v, copies, axis=1)
