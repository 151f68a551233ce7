"""TOVA: evict the slots that the newest query attends to least.

Oren, Hassid, Adi, Schwartz, *Transformers are Multi-State RNNs*, 2024, arXiv
2401.06104, section 3. When the cache is full, the softmax weights of the last query,
averaged over the layer's heads, value the slots. All heads keep the same `budget` slots
of the highest weights.

Deviations: slots are evicted every `every` tokens, not at each (`every=1` is the
paper's). The newest token is always kept. `by_head=True` lets each KV head choose by
its own query heads. Cost: an eviction reads the layer's keys twice.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.cache_layouts.held import full_heads
from models.distributed import sharding

CARD = Card(
    paper="arXiv 2401.06104",
    guarantee=base.LOSSY,
    family="eviction",
    needs=("model",),
    sources=("oren2024transformers",),
    examples={"budget": 12, "every": 8, "prompt_every": 16},
)


def policy(
    model,
    budget: budgets.Budget = 512,
    by_head: bool = False,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Keep what the newest query attends to.

    Args:
        model: the target's functions.
        budget: slots of a KV head, or a share of the prompt.
        by_head: each KV head has a choice of its own.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between evictions while decoding.
        prompt_every: tokens between those in the prompt.
    """

    def value(layer, about):
        q, tokens = layer.asked(about.length)
        held = layer.tokens(about.length)
        newest = about.length[:, None] - 1
        weight = jnp.where((tokens == newest) & (tokens >= 0), 1.0, 0.0)
        sums = layer.received(q, weight, tokens, held)
        if not by_head:  # slot j holds one token in all heads
            every = sums.sum(1, keepdims=True)
            every = sharding.total(every, full_heads(model.config)[0], "kv_heads")
            sums = jnp.broadcast_to(every, sums.shape)
        return jnp.where(held == newest[..., None], jnp.inf, sums), layer

    return scored.policy(
        scored.Rule(value, scored.ALL),
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )
