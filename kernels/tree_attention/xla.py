"""Tree attention as a loop over the cache, for back ends without a kernel.

Scores and masks exist for one stretch of slots at a time, so their memory does not grow
with the cache. Stretches past the longest row are not read. On a GPU a step of the loop
costs a dozen launches, so that stretches are as long as the memory of scores permits.
"""

from typing import Any

import einops
import jax.numpy as jnp
from jax import Array, lax

from kernels import int4_packing
from kernels.dispatch import GPU, HOPPER
from kernels.tree_attention import layout
from kernels.tree_attention.tiling import Shape

STRETCH = 512  # slots
LEAST_READ = 128  # slots of small pages in a step
SCORES = 2**29  # bytes of a stretch's scores, on a GPU
LEAST, UNSEEN = -1e30, -2e30  # see pallas_tpu


def stretch_of(platform: str, shape: Shape) -> int:
    """Return the slots of a step: a page at least; on a GPU, all that `SCORES` holds.

    H100, Llama 3 8B's shape: with the whole cache at once 4.3 to 9.4 times as fast at
    one row of 32k slots, 1.5 to 2.3 times at eight of 8k, as with 512
    (experiments/reports/accelerator_day.md).
    """
    if platform not in (GPU, HOPPER):
        pages = max(LEAST_READ // shape.page, 1) if shape.page else 0
        return pages * shape.page or STRETCH
    column = 4 * shape.batch * shape.groups * shape.heads * shape.nodes
    step = shape.page or STRETCH
    return max(1, min(SCORES // column, shape.size) // step) * step


def tree_attention(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    positions: Array | None = None,
    key_positions: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
    stretch: int = STRETCH,
    table: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, Array]:
    """Compute `api.tree_attention`; with a `table`, over pools of pages.

    `stretch` is the number of slots per step; with a `table`, a multiple of the page.
    """
    batch, nodes, heads, _ = q.shape
    dim = v.shape[-1]  # of values, which may be narrower than keys
    groups, size = k.shape[1], k.shape[2] * int4_packing.slots(k.dtype)
    page = size
    if table is not None:
        size = page * table.shape[1]
    stretch = min(stretch, size)
    copies = heads // groups
    dtype = jnp.promote_types(q.dtype, jnp.bfloat16)
    folded = einops.rearrange(q, "b n (g r) d -> b g (n r) d", g=groups).astype(dtype)
    union, end = layout.reach(ancestors)
    bounds = layout.bounds(size, lengths, end, positions, key_positions, window)
    length, first, last = (x[:, None] for x in bounds)

    def part(x: Array | None, at: Array, axis: int) -> Any:
        return None if x is None else lax.dynamic_slice_in_dim(x, at, stretch, axis)

    def pages(at: Array) -> Array:
        """Return int32[B, p]: the pages of a stretch."""
        assert table is not None
        return lax.dynamic_slice_in_dim(table, at // page, stretch // page, 1)

    def stored(x: Array, at: Array) -> Array:
        if table is not None:
            held = x.at[pages(at)].get(mode="clip")  # [B, p, G, page, d]
            return einops.rearrange(held, "b p g s d -> b g (p s) d")
        if int4_packing.packed(x.dtype):
            half = lax.dynamic_slice_in_dim(x, at // 2, stretch // 2, 2)
            return int4_packing.unpack(half)
        return part(x, at, 2)

    def fold(j: Array, carry: tuple) -> tuple:
        top, total, acc = carry
        # The last stretch is moved back into the cache; slots read before are masked.
        at = jnp.minimum(j * stretch, size - stretch)
        slot = at + jnp.arange(stretch, dtype=jnp.int32)[None]
        offset = slot - length
        inside = (offset < 0) & (slot >= first)
        ours = (slot >= j * stretch) & (slot < last)
        used = (inside | (_bits(union[:, None], offset)[:, 0] == 1)) & ours
        seen = (inside[:, None] | (_bits(ancestors, offset) == 1)) & ours[:, None]
        if window:
            assert positions is not None
            near = part(key_positions, at, 1)[:, None, :]
            seen &= positions[:, :, None] - near < window
        keys, values = stored(k, at).astype(dtype), stored(v, at).astype(dtype)
        s = lax.dot_general(
            folded,
            keys,
            (((3,), (3,)), ((0, 1), (0, 1))),
            preferred_element_type=jnp.float32,
        )
        if k_scale is not None:
            s = s * part(k_scale, at, 2)[:, :, None]
        if scale != 1.0:
            s = s * scale
        if softcap:
            s = jnp.tanh(s / softcap) * softcap
        if bias is not None:
            s = s + part(bias, at, 2)[:, :, None]
        s = einops.rearrange(s, "b g (n r) s -> b g n r s", n=nodes)
        s = jnp.where(seen[:, None, :, None], s, UNSEEN)
        s = einops.rearrange(s, "b g n r s -> b g (n r) s")
        high = jnp.maximum(top, s.max(-1, keepdims=True))
        p, shrink = jnp.exp(s - high), jnp.exp(top - high)
        total = total * shrink + p.sum(-1, keepdims=True)
        if v_scale is not None:
            p = p * jnp.where(used[:, None], part(v_scale, at, 2), 0.0)[:, :, None]
        values = jnp.where(used[:, None, :, None], values, 0)
        new = lax.dot_general(
            p.astype(dtype),
            values,
            (((3,), (2,)), ((0, 1), (0, 1))),
            preferred_element_type=jnp.float32,
        )
        return high, total, acc * shrink + new

    column = (batch, groups, nodes * copies, 1)
    begin = (
        jnp.full(column, LEAST),
        jnp.zeros(column),
        jnp.zeros((*column[:3], dim)),
    )
    some = jnp.where(last > first, first, size).min()
    steps = (some // stretch, -(-last.max() // stretch))
    top, total, acc = lax.fori_loop(*steps, fold, begin)
    kept = jnp.where(total == 0, 1.0, total)
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(kept))
    out = jnp.concatenate([acc / kept, lse], -1)
    out = einops.rearrange(out, "b g (n r) d -> b n (g r) d", n=nodes)
    return out[..., :dim].astype(q.dtype), out[..., dim]


def _bits(ancestors: Array, offset: Array) -> Array:
    """Return each node's bit at each offset, uint32[B, N, s]; 0 outside the tree."""
    words = ancestors.shape[-1]
    inside = (offset >= 0) & (offset < 32 * words)
    word = jnp.clip(offset >> 5, 0, words - 1)[:, None, :]
    chosen = jnp.take_along_axis(ancestors, word, 2)
    bit = (chosen >> (offset & 31).astype(jnp.uint32)[:, None, :]) & 1
    return jnp.where(inside[:, None], bit, 0)
