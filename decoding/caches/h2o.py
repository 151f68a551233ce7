"""H2O: keep the slots that got most attention so far, and the newest.

Zhang, Sheng, Zhou, Chen, Zheng, Cai, Song, Tian, Ré, Barrett, Wang, Chen, *H2O:
Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models*, 2023,
arXiv 2306.14048, section 4.

The score of slot j is the sum, over the queries i that saw it, of the softmax weight
a_ij. Of a budget of k slots, `recent` · k are the newest tokens; the others are those
of the highest scores among the rest.

Deviations: slots are evicted every `every` tokens, not at each (`every=1` is the
paper's); scores are of a KV head, the sum over its query heads; rows are apart, where
the official code adds the scores of a batch.

Cost: between evictions none. An eviction reads the layer's keys twice.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2306.14048",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("zhang2023h2o",),
    examples={"budget": 12, "every": 8, "prompt_every": 16},
)


def policy(
    budget: budgets.Budget = 0.2,
    recent: float = 0.5,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
    normalised: bool = False,
) -> base.CachePolicy:
    """Keep heavy hitters and the newest tokens.

    Args:
        budget: slots of a KV head, or a share of the prompt (the paper's main setting:
            0.1 for heavy hitters and 0.1 for the newest).
        recent: share of the budget for the newest tokens.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between evictions while decoding.
        prompt_every: tokens between those in the prompt.
        normalised: divide a slot's score by the number of queries that saw it.

    Raises:
        MethodError: a number out of range.
    """
    if not 0 <= recent <= 1:
        raise MethodError(f"recent={recent}: use a share of the budget, in [0, 1]")

    def value(layer, about):
        length = about.length[:, None, None]
        q, tokens = layer.asked(about.length)
        held = layer.tokens(about.length)
        new = layer.received(q, jnp.where(tokens < 0, 0.0, 1.0), tokens, held)
        score = layer.notes["score"] + new
        newest = jnp.floor(recent * about.keep).astype(jnp.int32)[:, None, None]
        worth = score / (length - held) if normalised else score
        worth = jnp.where(held >= length - newest, jnp.inf, worth)
        return worth, layer.replace(notes={"score": score})

    rule = scored.Rule(value, scored.ALL, {"score": (jnp.float32, ())})
    return scored.policy(
        rule,
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )
