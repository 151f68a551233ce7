"""The scratch slots of a search: who sees whom, which are free, what is settled.

The key of a generated token lies in a slot behind the committed ones. Bits say which
slots hold the ancestors of each, so a hypothesis is a row of bits: to keep, drop or
reorder hypotheses moves no key. All functions are ★ (of one request).
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from models.base import pack_bits


@struct.dataclass
class Slots:
    """Ancestors-or-self of the node in each of `S` slots, as in `Visibility`."""

    bits: Array  # uint32[B, S, S / 32]


class Order(NamedTuple):
    """A new order of the slots: settled ones, then live ones, then the free."""

    order: Array  # int32[S]: the old slot of each place
    settled: Array  # int32[]: the first so many are committed
    kept: Array  # int32[]: settled and live ones


def empty(batch: int, size: int) -> Slots:
    """Make `size` free slots a request; a multiple of 32."""
    return Slots(jnp.zeros((batch, size, size // 32), jnp.uint32))


def unpacked(bits: Array) -> Array:
    """Unpack uint32[..., W] to bool[..., 32 W]."""
    spread = (bits[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return (spread == 1).reshape(*bits.shape[:-1], -1)


def above(bits: Array, slot: Array) -> Array:
    """Return the ancestors' bits of the children of the nodes in `slot`, uint32[K, W].

    A slot of -1 is a committed node: its children have no ancestors in scratch slots.
    """
    return jnp.where((slot >= 0)[:, None], bits[jnp.maximum(slot, 0)], jnp.uint32(0))


def held(up: Array, live: Array) -> Array:
    """Return the slots that the `live` bool[K] lanes' ancestries hold, bool[S]."""
    return unpacked(jnp.where(live[:, None], up, jnp.uint32(0))).any(0)


def written(bits: Array) -> Array:
    """Return the slots that were ever given, bool[S]; `bits` uint32[S, W]."""
    return (bits != 0).any(-1)


def placed(
    bits: Array, up: Array, live: Array, used: Array, parents: Array, depth: int
) -> tuple[Array, Array, Array]:
    """Give every live node of a block a free slot: the lanes' nodes, then drafts.

    Args:
        bits: uint32[S, W].
        up: uint32[K, W], the ancestors of each lane's node.
        live: bool[N], of all nodes of the block.
        used: bool[S], the slots that are not free.
        parents: int32[N - K], the drafts' parents in the block.
        depth: how deep drafts hang below the lanes, at most.

    Returns:
        The slots int32[N] (-1: the node is not live), the nodes' ancestors-or-self
        uint32[N, W], and the new bits.
    """
    size, lanes = bits.shape[0], up.shape[0]
    free = ~used
    rank = jnp.cumsum(free) - 1
    turn = jnp.cumsum(live) - 1
    mine = free & (rank == turn[:, None])
    slot = jnp.argmax(mine, -1).astype(jnp.int32)
    own = pack_bits(jnp.arange(size) == slot[:, None])
    seen = jnp.pad(up, ((0, parents.shape[0]), (0, 0))) | own
    for _ in range(depth):
        seen = seen.at[lanes:].set(seen[parents] | own[lanes:])
    at = jnp.where(live, slot, size)
    return jnp.where(live, slot, -1), seen, bits.at[at].set(seen, mode="drop")


def settling(bits: Array, up: Array, live: Array) -> Order:
    """Order the slots so that the common path of the live lanes comes first.

    Args:
        bits: uint32[S, W].
        up: uint32[K, W], the ancestors of each lane's node.
        live: bool[K].
    """
    size = bits.shape[0]
    used = held(up, live)
    common = (unpacked(up) | ~live[:, None]).all(0) & used
    depth = lax.population_count(bits).sum(-1).astype(jnp.int32)
    index = jnp.arange(size, dtype=jnp.int32)
    rank = jnp.where(common, depth, jnp.where(used, size + 1 + index, 3 * size + index))
    order = jnp.argsort(rank).astype(jnp.int32)
    return Order(order, common.sum(dtype=jnp.int32), used.sum(dtype=jnp.int32))


def reordered(bits: Array, order: Order) -> tuple[Array, Array]:
    """Put the slots into a new order and drop the settled ones.

    Returns:
        The new bits, and the new slot of each old one int32[S]; -1 where it is settled
        or free.
    """
    size = bits.shape[0]
    index = jnp.arange(size, dtype=jnp.int32)
    moved = unpacked(bits)[order.order][:, order.order]
    shifted = jnp.roll(jnp.roll(moved, -order.settled, 0), -order.settled, 1)
    live = index < order.kept - order.settled
    bits = pack_bits(shifted & live & live[:, None])
    place = jnp.zeros(size, jnp.int32).at[order.order].set(index)
    inside = (place >= order.settled) & (place < order.kept)
    return bits, jnp.where(inside, place - order.settled, -1)
