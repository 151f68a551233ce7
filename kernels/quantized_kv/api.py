"""Attention over a quantised cache with a recent window in full precision.

Liu, Yuan, Jin, Zhong, Xu, Braverman, Chen, Hu, *KIVI: A Tuning-Free Asymmetric 2bit
Quantization for KV Cache*, 2024, arXiv 2402.02750, section 3: keys by channel, values
by token, the last tokens exact. The precision of slot `s` for a node depends on the
node's position `p` alone:

    quantised when  s < boundary(p) = GROUP * floor((p - window) / GROUP),  else exact

so that a text does not depend on how many tokens a round verifies. A group of tokens is
quantised once it is complete and committed. Its exact copy stays until no node of a
round needs it. Two calls of `tree_attention`, over the codes and over the recent
tokens, are merged by log-sum-exp; its forms and limits apply here.

*Deviations from the paper*: codes are symmetric; a channel has one factor for the
row, beside each token's scale, in place of a scale for every group (`codes`).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels import merge_softmax
from kernels.quantized_kv.codes import GROUP
from kernels.tree_attention import tree_attention


class Old(NamedTuple):
    """The codes: slots below a row's boundary, and complete groups after it."""

    k: Array  # int8[B, G, S, d], or uint8[B, G, S / 2, d] (`kernels.int4_packing`)
    v: Array
    k_scale: Array | None  # float32[B, G, S]; None: k and v are values, not codes
    v_scale: Array | None
    channel: Array  # float32[B, G, d]: factors of the keys' channels


class Recent(NamedTuple):
    """The last tokens and those of the block: slot `base + r` is in row `r`."""

    k: Array  # [B, G, R, d]
    v: Array
    base: Array  # int32[B]: boundary(committed tokens)


def boundary(positions: Array, window: int, group: int = GROUP) -> Array:
    """Return the first slot that is exact for nodes at `positions`."""
    return jnp.maximum((positions - window) // group, 0) * group


def attention(
    q: Array,
    old: Old,
    recent: Recent,
    lengths: Array,
    ancestors: Array,
    positions: Array,
    key_positions: Array,
    *,
    keep: int,
    group: int = GROUP,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
    kernel: str = "auto",
) -> tuple[Array, Array]:
    """Compute `tree_attention` over the whole cache, with at least `keep` exact tokens.

    `positions` [B, N] and `key_positions` [B, S] are always needed. Positions must be
    slots: where a policy evicts, too, a node's position is its slot's number. A node is
    less than `keep` tokens behind the root. Groups of `group` tokens, a multiple of 32,
    are quantised together. Other arguments as in `tree_attention`.
    """
    batch, nodes, _, dim = q.shape
    groups, size = recent.k.shape[1], key_positions.shape[1]
    first = boundary(positions, keep, group)
    # Codes past the root's boundary are for deeper nodes: the bits of whole words.
    words = -(-keep // group) * group // 32
    ends = 32 * (1 + jnp.arange(words, dtype=jnp.int32))
    seen = ends <= (first - recent.base[:, None])[..., None]
    bits = jnp.where(seen, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    turned = q.reshape(batch, nodes, groups, -1, dim)
    turned = turned * old.channel[:, None, :, None].astype(q.dtype)
    far = tree_attention(
        turned.reshape(q.shape),
        old.k,
        old.v,
        recent.base,
        bits,
        positions=positions if window else None,
        key_positions=key_positions if window else None,
        window=window,
        softcap=softcap,
        scale=scale,
        k_scale=old.k_scale,
        v_scale=old.v_scale,
        kernel=kernel,
    )
    # "Not before the boundary" is a window of one that ends at the boundary.
    since = first
    if window:
        since = jnp.maximum(first, positions - window + 1)
    slots = recent.base[:, None] + jnp.arange(recent.k.shape[2], dtype=jnp.int32)
    held = jnp.take_along_axis(key_positions, jnp.minimum(slots, size - 1), 1)
    near = tree_attention(
        q,
        recent.k,
        recent.v,
        lengths - recent.base,
        ancestors,
        positions=since,
        key_positions=held,
        window=1,
        softcap=softcap,
        scale=scale,
        kernel=kernel,
    )
    return merge_softmax.merge([far, near])
