"""KeyDiff: evict the keys that are most like the mean key.

Park, Jones, Morse, Goel, Lee, Lott, *KeyDiff: Key Similarity-Based KV Cache Eviction
for Long-Context LLM Inference in Resource-Constrained Environments*, 2025, arXiv
2504.15364, section 3. With the keys k_j of a KV head as they lie in the cache,

    anchor = mean of k_j / |k_j|;    value of slot j: -cos(k_j, anchor)

and the `budget` slots of the highest values stay. The prompt is read in blocks of
`prompt_every` tokens, and slots are evicted after each, which bounds its memory too.

Deviations: while decoding slots are evicted every `every` tokens; the newest token is
always kept. Cost: an eviction reads the layer's keys once.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card

CARD = Card(
    paper="arXiv 2504.15364",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("park2025keydiff",),
    examples={"budget": 12, "every": 8, "prompt_every": 16},
)


def policy(
    budget: budgets.Budget = 0.5,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Keep keys that differ from the mean.

    Args:
        budget: slots of a KV head, or a share of the prompt.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between evictions while decoding.
        prompt_every: tokens between those in the prompt.
    """

    def value(layer, about):
        held = layer.tokens(about.length)
        k = layer.store.read()[0].astype(jnp.float32)
        unit = k / jnp.maximum(jnp.linalg.norm(k, axis=-1, keepdims=True), 1e-12)
        unit = jnp.where((held >= 0)[..., None], unit, 0.0)
        anchor = unit.sum(2, keepdims=True)
        alike = (unit * anchor).sum(-1)
        alike = alike / jnp.maximum(jnp.linalg.norm(anchor, axis=-1), 1e-12)
        newest = about.length[:, None, None] - 1
        return jnp.where(held == newest, jnp.inf, -alike), layer

    return scored.policy(
        scored.Rule(value),
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )
