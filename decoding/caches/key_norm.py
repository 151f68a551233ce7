"""Keep the keys of the smallest norm: a control that reads no query.

Devoto, Zhao, Scardapane, Minervini, *A Simple and Effective $L_2$ Norm-Based Strategy
for KV Cache Compression*, 2024, arXiv 2406.11430, section 3. When the prompt is read,
each KV head keeps the `budget` slots of the smallest |k_j|; what follows the prompt
stays.

Deviations: the newest token is always kept. Cost: one read of the keys, once.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card

CARD = Card(
    paper="arXiv 2406.11430",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("devoto2024simple",),
    examples={"budget": 12},
)


def policy(
    budget: budgets.Budget = 0.5, layers: budgets.Layers = budgets.UNIFORM
) -> base.CachePolicy:
    """Evict once, by the norms of the keys.

    Args:
        budget: slots of a KV head, or a share of the prompt.
        layers: "uniform", "pyramid", or each layer's weight.
    """

    def value(layer, about):
        held = layer.tokens(about.length)
        k = layer.store.read()[0].astype(jnp.float32)
        newest = about.length[:, None, None] - 1
        norm = jnp.linalg.norm(k, axis=-1)
        return jnp.where(held == newest, jnp.inf, -norm), layer

    return scored.policy(scored.Rule(value), budget, layers=layers)
