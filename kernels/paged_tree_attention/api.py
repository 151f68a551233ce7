"""Tree attention over pages: the same kernels, with a page table.

A page is [G, page, d] in one piece of memory. On a TPU the kernel copies the pages of a
block side by side; on a GPU a page is one or several of its blocks. Slot `s` of row `b`
is slot `s % page` of page `table[b, s // page]`. The tables of rows that share a prefix
have the same pages.
"""

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
    """
    if window and (positions is None or key_positions is None):
        raise ValueError(f"window={window}: give positions and key_positions, too")
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
