"""The full cache: every committed token stays, tree nodes come after it (baseline)."""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card

CARD = Card(
    paper="baseline: full key-value cache", guarantee=base.LAW, family="full cache"
)


def policy() -> base.CachePolicy:
    """Slots `length + i` for node `i`; nothing is evicted. State: none."""

    def place(state, cache, nodes):
        index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
        slots = cache.length[:, None] + index
        return slots, tree.visibility(nodes, cache.length)

    def retain(state, cache, outcome: base.Outcome):
        verdict, linear = outcome.verdict, outcome.tree.linear
        return cache.commit(verdict.path, verdict.count, linear), state

    return base.CachePolicy(lambda cache: (), place, retain)
