"""The layers that an exit chooses for a block: put into it, and counted."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from decoding import base, tree
from decoding.loops.stats import Counters
from models.base import Block


def put(exits: base.ExitPolicy, state: base.State, block: Block, live: Array) -> Block:
    """Return the block with its `run` and `gate`.

    A layer runs if a node of `live` bool[B, N] needs it, whichever row the node is in.
    """
    if exits.layers is None:
        return block
    run, gate = exits.layers(state, block.positions)
    if gate is not None:
        used = (live & ~gate).any((1, 2))[:, None]
        run = used & (jnp.ones((1, 2), bool) if run is None else run)
    return replace(block, run=run, gate=gate)


def count(counters: Counters, block: Block, outcome: base.Outcome) -> Counters:
    """Add the layers that a round's committed nodes needed, and those that ran."""
    if counters.layers is None:
        return counters
    assert block.run is not None
    ran = block.run.any(1).sum()
    needs = block.run.any(1)[:, None, None]
    if block.gate is not None:
        needs = needs & ~block.gate
    each = jnp.broadcast_to(needs, (needs.shape[0], *block.tokens.shape)).sum(0)
    path = jnp.pad(outcome.verdict.path, ((0, 0), (1, 0)))  # from the root on
    index = jnp.arange(path.shape[1], dtype=jnp.int32)
    taken = jnp.where(
        index <= outcome.verdict.count[:, None], tree.pick(each, path), 0
    ).sum(1)
    both = jnp.stack([taken, jnp.where(outcome.active, ran, 0)], 1)
    return replace(counters, layers=counters.layers + both.astype(jnp.float32))
