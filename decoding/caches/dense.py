"""The full cache: every committed token stays, and tree nodes follow (baseline)."""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card

CARD = Card(
    paper="baseline: full key-value cache", guarantee=base.LAW, family="full cache"
)


def policy() -> base.CachePolicy:
    """Put node `i` in slot `length + i`, and evict nothing. The policy has no state."""

    def place(state, cache, nodes):
        index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
        slots = cache.length[:, None] + index
        return slots, tree.visibility(nodes, cache.length)

    def retain(state, cache, outcome: base.Outcome):
        verdict, linear = outcome.verdict, outcome.tree.linear
        return cache.commit(verdict.path, verdict.count, linear), state

    return base.CachePolicy(lambda cache: (), place, retain)
