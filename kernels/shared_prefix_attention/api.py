"""Attention over shared prefixes and the rows' own suffixes.

Juravsky, Brown, Ehrlich, Fu, Ré, Mirhoseini, *Hydragen: High-Throughput LLM Inference
with Shared Prefixes*, 2024, arXiv 2402.05099, section 3. Attention over a sequence is
that over its parts, merged by their sums of exponentials (3.1). The queries of all
rows of a prefix become nodes of one row, so that the prefix is read once and its scores
are a matrix product (3.2); prefixes of prefixes are levels (3.3).

    q [B, N, H, d]  ->  [B', B N / B', H, d]  for a level of B' prefixes

Every part is a call of `tree_attention`, whose forms and limits apply here.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import einops
import jax.numpy as jnp
from jax import Array

from kernels import merge_softmax
from kernels.tree_attention import tree_attention


class Level(NamedTuple):
    """`B'` prefixes, each shared by `B / B'` consecutive rows."""

    k: Array  # [B', G, P, d]
    v: Array  # [B', G, P, d]
    lengths: Array  # int32[B']: slots from here on are seen only by `ancestors`
    ancestors: Array | None = None  # uint32[B, N, W]: bits from `lengths` on


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
    kernel: str = "auto",
) -> tuple[Array, Array]:
    """Compute `tree_attention` over each row's prefixes and its suffix.

    `levels` begin with the outermost. `k`, `v` [B, G, S, d] and `lengths` are of the
    suffixes alone; keys have their positions in the whole text. Sliding windows are not
    supported: a window that ends inside a suffix does not need the prefix, and any
    other reads part of it for each row.
    """
    batch, nodes = q.shape[:2]
    attend = functools.partial(
        tree_attention, softcap=softcap, scale=scale, kernel=kernel
    )
    parts = [attend(q, k, v, lengths, ancestors)]
    for level in levels:
        shared = level.k.shape[0]
        if batch % shared:
            raise ValueError(
                f"a level of {shared} prefixes for {batch} rows: each prefix must be "
                "shared by the same number of rows"
            )
        side = batch // shared * nodes
        queries = einops.rearrange(q, "(p rows) n h d -> p (rows n) h d", p=shared)
        bits = jnp.zeros((shared, side, 1), jnp.uint32)
        if level.ancestors is not None:  # blocks of the prefix itself
            bits = einops.rearrange(
                level.ancestors, "(p rows) n w -> p (rows n) w", p=shared
            )
        out, total = attend(queries, level.k, level.v, level.lengths, bits)
        parts.append(
            (
                einops.rearrange(out, "p (rows n) h d -> (p rows) n h d", n=nodes),
                einops.rearrange(total, "p (rows n) h -> (p rows) n h", n=nodes),
            )
        )
    return merge_softmax.merge(parts)
