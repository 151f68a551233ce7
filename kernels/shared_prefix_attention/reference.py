"""The reference of shared-prefix attention: every row with a copy of its prefixes."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from kernels.shared_prefix_attention.api import Level
from kernels.tree_attention import reference


def shared_prefix_attention(
    q: Array,
    levels: Sequence[Level],
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    *,
    softcap: float = 0.0,
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """Compute `api.shared_prefix_attention` with a copy of the prefixes per row."""
    batch, nodes = q.shape[:2]
    keys, values = [k], [v]
    seen = [reference.visible(k.shape[2], lengths, ancestors)]
    for level in levels:
        times = batch // level.k.shape[0]
        keys.append(jnp.repeat(level.k, times, 0))
        values.append(jnp.repeat(level.v, times, 0))
        index = jnp.arange(level.k.shape[2], dtype=jnp.int32)
        mask = index < jnp.repeat(level.lengths, times)[:, None]
        seen.append(jnp.broadcast_to(mask[:, None], (batch, nodes, index.size)))
    k, v, mask = (jnp.concatenate(x, 2) for x in (keys, values, seen))
    return reference.attend(q, k, v, mask, softcap, scale)
