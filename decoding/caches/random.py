"""Keep random slots: the control that every eviction must beat.

When the prompt is read, each KV head keeps `budget` slots that a hash of the layer, the
head and the token chooses; what follows the prompt stays. The newest token is always
kept.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, hashed, scored
from decoding.catalogue import Card

CARD = Card(
    paper="baseline: random slots",
    guarantee=base.LOSSY,
    family="eviction",
    examples={"budget": 12},
)


def policy(
    budget: budgets.Budget = 0.5,
    seed: int = 0,
    layers: budgets.Layers = budgets.UNIFORM,
) -> base.CachePolicy:
    """Evict once, by chance.

    Args:
        budget: slots of a KV head, or a share of the prompt.
        seed: of the hash.
        layers: "uniform", "pyramid", or each layer's weight.
    """

    def value(layer, about):
        held = layer.tokens(about.length)
        head = jax.lax.broadcasted_iota(jnp.int32, held.shape, 1)
        drawn = hashed.uniform(seed, about.layer, head, held)
        newest = about.length[:, None, None] - 1
        return jnp.where(held == newest, jnp.inf, drawn), layer

    return scored.policy(scored.Rule(value, exact=True), budget, layers=layers)
