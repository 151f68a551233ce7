"""The layout of a call for accelerators: rows of heads and nodes, mask bytes.

The `R` query heads of a key-value head read the same keys. So a program's rows are
heads times nodes, `rows = copies * width` in each of `chunks` pieces:

    q [B, N, H, d]  ->  [B, G, chunks, copies * width, d]

A chunk holds the nodes of one *tile* (`width` of them), for `copies` heads. Chunk `c`
is of tile `c % tiles`. Few nodes are *folded*: nodes and heads are one axis of
`width = N * R` rows.
"""

import dataclasses

import einops
import jax.numpy as jnp
from jax import Array, lax

ROWS = 256  # of a chunk, at most: their scores of a block must fit in fast memory
SUBLANES = 16  # of a 16-bit tile
LANES = 128
MOST_NODES = 8 * LANES  # ancestor bits are 128 bytes at most


def up(x: int, to: int) -> int:
    """Round `x` up to a multiple of `to`."""
    return -(-x // to) * to


@dataclasses.dataclass(frozen=True)
class Rows:
    """The layout of rows; `heads` is R, `folded`: nodes and heads are one axis."""

    nodes: int
    heads: int
    folded: bool
    tiles: int
    width: int
    copies: int

    @property
    def rows(self) -> int:
        return self.copies * self.width

    @property
    def chunks(self) -> int:
        return self.tiles * (1 if self.folded else self.heads // self.copies)


def rows(nodes: int, heads: int) -> Rows:
    """Lay out `nodes` nodes with `heads` query heads per key-value head."""
    folded = nodes < SUBLANES
    count = nodes * heads if folded else nodes
    tiles = -(-count // ROWS)
    width = up(-(-count // tiles), SUBLANES)
    copies = 1
    if not folded and tiles == 1:
        fits = (c for c in range(1, heads + 1) if c * width <= ROWS)
        copies = max(c for c in fits if heads % c == 0)
    return Rows(nodes, heads, folded, tiles, width, copies)


def fold(at: Rows, q: Array, groups: int) -> Array:
    """Reshape q `[B, N, H, d]` to `[B, G, chunks, rows, d]`; padding rows are zeros."""
    if at.folded:
        q = einops.rearrange(q, "b n (g r) d -> b g (n r) d", g=groups)
        q = _pad(q, 2, at.tiles * at.width)
        return einops.rearrange(q, "b g (c rows) d -> b g c rows d", c=at.chunks)
    q = einops.rearrange(q, "b n (g r) d -> b g r n d", g=groups)
    return einops.rearrange(
        _pad(q, 3, at.tiles * at.width),
        "b g (r copies) (t w) d -> b g (r t) (copies w) d",
        copies=at.copies,
        w=at.width,
    )


def unfold(at: Rows, x: Array) -> Array:
    """Invert `fold`, for any trailing axes: return `[B, N, H, ...]`."""
    if at.folded:
        x = einops.rearrange(x, "b g c rows ... -> b g (c rows) ...")
        x = x[:, :, : at.nodes * at.heads]
        return einops.rearrange(x, "b g (n r) ... -> b n (g r) ...", n=at.nodes)
    x = einops.rearrange(
        x,
        "b g (r t) (copies w) ... -> b g (r copies) (t w) ...",
        t=at.tiles,
        w=at.width,
    )
    return einops.rearrange(x[:, :, :, : at.nodes], "b g r n ... -> b n (g r) ...")


def spread(at: Rows, x: Array) -> Array:
    """Reshape entries per node, `[B, N, ...]`, to `[B, tiles, width, ...]`."""
    if at.folded:
        x = jnp.repeat(x, at.heads, 1)
    x = _pad(x, 1, at.tiles * at.width)
    return x.reshape(x.shape[0], at.tiles, at.width, *x.shape[2:])


def mask_bytes(ancestors: Array) -> Array:
    """Split uint32[..., W] into bytes bfloat16[..., 128], which holds 0..255 exactly.

    A kernel spreads the bytes over its slots with one small matrix product, and then
    tests a bit of each. This works for any alignment of the tree in the cache.
    """
    shifts = jnp.arange(0, 32, 8, dtype=jnp.uint32)
    split = (ancestors[..., None] >> shifts) & 255
    split = split.reshape(*ancestors.shape[:-1], -1)
    return _pad(split.astype(jnp.bfloat16), split.ndim - 1, LANES)


def reach(ancestors: Array) -> tuple[Array, Array]:
    """Return the union of a row's bits uint32[B, W], and its end int32[B].

    The end is the highest set bit + 1, or 0.
    """
    union = jnp.bitwise_or.reduce(ancestors, axis=1)
    first = 32 * jnp.arange(union.shape[1], dtype=jnp.int32)
    top = 32 - lax.clz(union).astype(jnp.int32)
    return union, jnp.where(union == 0, 0, first + top).max(1)


def bounds(
    size: int,
    lengths: Array,
    end: Array,
    positions: Array | None,
    key_positions: Array | None,
    window: int,
) -> Array:
    """Return int32[3, B]: the lengths, and the first and the end of a row's slots.

    Args:
        size: slots S of the cache.
        lengths: int32[B], of the committed prefix.
        end: int32[B], of the ancestor bits, from `reach`.
        positions: int32[B, N], required with a window.
        key_positions: int32[B, S], required with a window.
        window: in tokens; 0: none.
    """
    index = jnp.arange(size, dtype=jnp.int32)
    first = jnp.zeros_like(lengths)
    if window:
        assert positions is not None and key_positions is not None
        oldest = positions.min(1)[:, None] - window
        near = (key_positions > oldest) & (index < lengths[:, None])
        first = jnp.where(near, index, lengths[:, None]).min(1)
    last = jnp.minimum(lengths + end, size)
    return jnp.stack([lengths, first, last]).astype(jnp.int32)


def clear_from(
    lengths: Array, positions: Array | None, key_positions: Array | None, window: int
) -> Array:
    """Return int32[B]: from this slot on to `lengths`, every node sees every slot.

    Arguments as in `bounds`.
    """
    if not window:
        return jnp.zeros_like(lengths, jnp.int32)
    assert positions is not None and key_positions is not None
    newest = positions.max(1)[:, None] - window
    index = jnp.arange(key_positions.shape[1], dtype=jnp.int32)
    far = (key_positions <= newest) & (index < lengths[:, None])
    return jnp.where(far, index + 1, 0).max(1).astype(jnp.int32)


def _pad(x: Array, axis: int, size: int) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths)
