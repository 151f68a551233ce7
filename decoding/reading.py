"""What drafters with heads of their own read of a round, and keep of it."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base, tree
from models.base import Block, causal_block
from models.errors import MethodError


def check_depth(name: str, topology: base.Topology, heads: int) -> None:
    """Refuse a tree that is deeper than there are heads."""
    if topology.depth > heads:
        raise MethodError(
            f"the tree is {topology.depth} levels deep and there are {heads} {name} "
            f"heads: use a tree of at most {heads} levels, or train more heads"
        )


def states(outcome: base.Outcome, tap: Any) -> Array:
    """The target's states [B, D + 1, width] at the root and along the accepted path.

    The `j`th is that from which the `j`th committed token was chosen.
    """
    path = outcome.verdict.path
    nodes = jnp.concatenate([jnp.zeros((path.shape[0], 1), path.dtype), path], 1)
    hidden = outcome.target.hidden[tap]
    return jnp.take_along_axis(hidden, nodes[..., None], 1)


def last_state(outcome: base.Outcome, tap: Any, old: Array) -> Array:
    """The state [B, width] from which the extra token was chosen.

    `old` in rows that commit nothing.
    """
    node = tree.last_node(outcome.verdict)[:, None, None]
    found = jnp.take_along_axis(outcome.target.hidden[tap], node, 1)[:, 0]
    moved = outcome.active & (outcome.verdict.count >= 0)
    return jnp.where(moved[:, None], found.astype(old.dtype), old)


def pairs(outcome: base.Outcome, cache: Any) -> Block:
    """The committed tokens of a round as a causal block for a head's own layer.

    Its `j`th node is the `j`th token, at the position of the state that chose it. The
    cache holds one such pair for every committed token but the first.
    """
    tokens, count = tree.committed(outcome.tree, outcome.verdict)
    count = jnp.where(outcome.active, count, 0)
    return causal_block(tokens, cache.length, count, cache.size)


def settle(outcome: base.Outcome, found: Array, old: Array, cache: Any) -> tuple:
    """The output at the last of the round's `pairs`, and the cache that holds them.

    `found` [B, D + 1, width] are the outputs, `old` [B, width] the last one before.
    """
    count = jnp.where(outcome.active, outcome.verdict.count, -1)
    at = jnp.maximum(count, 0)[:, None, None]
    last = jnp.take_along_axis(found, at, 1)[:, 0].astype(old.dtype)
    none = jnp.zeros((count.shape[0], 0), jnp.int32)
    cache = cache.commit(none, count, linear=True)
    return jnp.where((count >= 0)[:, None], last, old), cache
