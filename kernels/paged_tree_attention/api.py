"""Tree attention over pages: the same kernels, with a page table.

A page is [G, page, d] in one piece of memory. On a TPU the kernel copies the pages of a
block side by side; on a GPU a page is one or several of its blocks. Slot `s` of row `b`
is slot `s % page` of page `table[b, s // page]`. The tables of rows that share a prefix
have the same pages.

KV heads may have tables of their own. Each is then a row of one KV head: its pages need
copies of their own in any case, it has no step that another head alone needs, and a
pool seen as pages of one head is the same array.
"""

from typing import Any

import einops
import jax.numpy as jnp
from jax import Array

from kernels import block_traffic
from kernels.dispatch import AUTO, GPU, INTERPRET, TPU, XLA, Choice
from kernels.tree_attention import api as dense
from kernels.tree_attention import layout, pallas_gpu, pallas_tpu, xla


def choose(kernel: str, platform: str, shape: pallas_tpu.Shape, words: int = 1):
    """Choose the form of a call; see `tree_attention.choose`."""
    choice = dense.choose(kernel, platform, shape, words)
    if choice.form == TPU and shape.page % layout.SUBLANES:
        why = f"pages of {shape.page} slots: a multiple of {layout.SUBLANES} is needed"
        return Choice(XLA, why)
    return choice


def paged_tree_attention(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    lengths: Array,
    ancestors: Array,
    *,
    positions: Array | None = None,
    key_positions: Array | None = None,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> tuple[Array, Array]:
    """Compute `tree_attention` over pools of pages; other arguments as there.

    k, v    [P, G, page, d]
    table   int32[B, S / page]: the page of each stretch of slots; entries past a
            row's last slot are not used

    With a table int32[B, G, S / page] of each KV head, `k` and `v` may be [P, 1, page,
    d], pages that any head may have; `lengths` may be int32[B, G], and `key_positions`
    int32[B, G, S].
    """
    if window and (positions is None or key_positions is None):
        raise ValueError(f"window={window}: give positions and key_positions, too")
    if table.ndim == 3:
        return _by_head(
            q,
            k,
            v,
            table,
            lengths,
            ancestors,
            positions,
            key_positions,
            window=window,
            softcap=softcap,
            scale=scale,
            kernel=kernel,
            vmem=vmem,
        )
    batch, nodes, heads, dim = q.shape
    pages, groups, page, _ = k.shape
    shape = pallas_tpu.Shape(
        batch,
        groups,
        page * table.shape[1],
        dim,
        nodes,
        heads // groups,
        q.dtype,
        k.dtype,
        False,
        window,
        softcap,
        scale,
        page,
        pages,
    )
    platform = block_traffic.platform()
    form, _ = choose(kernel, platform, shape, ancestors.shape[2])
    arguments = (q, k, v, lengths, ancestors, positions, key_positions)
    table = table.astype(jnp.int32)
    if form == XLA:
        return xla.tree_attention(
            *arguments,
            window=window,
            softcap=softcap,
            scale=scale,
            stretch=xla.stretch_of(platform, shape),
            table=table,
        )
    if form == GPU:
        return pallas_gpu.tree_attention(shape, *arguments, table=table)
    interpret = form == INTERPRET
    vmem = vmem or block_traffic.vmem_here(interpret)
    plan = pallas_tpu.plan(shape, vmem, block_traffic.cores_here(interpret))
    return pallas_tpu.tree_attention(
        plan, *arguments, table=table, vmem=vmem, interpret=interpret
    )


def _by_head(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    lengths: Array,
    ancestors: Array,
    positions: Array | None,
    key_positions: Array | None,
    **settings: Any,
) -> tuple[Array, Array]:
    """Compute attention over tables of KV heads, each a row of one KV head."""
    groups, (pages, heads) = table.shape[1], k.shape[:2]
    if heads not in (1, groups):
        raise ValueError(f"pages of {heads} KV heads: use 1 or the table's {groups}")
    # Page p of head h is page p * heads + h of the pool's pages of one head.
    flat = table * heads + jnp.arange(groups, dtype=jnp.int32)[:, None] % heads
    flat = jnp.where(table < pages, flat, pages * heads)

    def rows(x: Array, each: bool = False) -> Array:
        """Flatten [B, G, ...], of `each` head; repeat [B, ...]."""
        return x.reshape(-1, *x.shape[2:]) if each else jnp.repeat(x, groups, 0)

    if positions is not None:
        positions = rows(positions)
    if key_positions is not None:
        key_positions = rows(key_positions, key_positions.ndim == 3)
    out, lse = paged_tree_attention(
        einops.rearrange(q, "b n (g r) d -> (b g) n r d", g=groups),
        k.reshape(-1, 1, *k.shape[2:]),
        v.reshape(-1, 1, *v.shape[2:]),
        flat.reshape(-1, flat.shape[2]),
        rows(lengths, lengths.ndim == 2),
        rows(ancestors),
        positions=positions,
        key_positions=key_positions,
        **settings,
    )
    out = einops.rearrange(out, "(b g) n r d -> b n (g r) d", g=groups)
    return out, einops.rearrange(lse, "(b g) n r -> b n (g r)", g=groups)
