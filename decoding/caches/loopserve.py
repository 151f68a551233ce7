"""LoopServe, decoding: every few tokens, the input tokens that are read are renewed.

Li, Xu, Li, Chen, Li, Tian, Xiao, Deng, Wang, Li, Chen, Yuan, *LoopServe: An Adaptive
Dual-phase LLM Inference Acceleration System for Multi-Turn Dialogues*, 2025, arXiv
2507.13681. The whole cache stays. When a row has seen a multiple of `refresh` tokens,
the `budget` input tokens j of the largest attention from the last `queries` queries i,

    s_j = sum_i a_ij

are chosen; up to the next multiple nodes read these and all generated tokens. Without
a next multiple this is SnapKV without pooling.

Deviations: the numbers are not confirmed by code, of which there is none; the prompt is
read whole (the paper computes lines of its attention); multiples are counted from the
text's beginning, so that the text does not depend on rounds; weights are summed over a
KV head's query heads. Cost: the whole cache in memory; a read of the keys every
`refresh` tokens.
"""

import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import selected
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2507.13681",
    guarantee=base.LOSSY,
    family="sparse reads",
    sources=("li2025loopserve",),
    examples={"budget": 12, "queries": 4, "refresh": 8},
)


def policy(
    budget: budgets.Budget = 1024,
    queries: int = 16,
    full: int = 0,
    refresh: int = 16,
) -> base.CachePolicy:
    """Read the input tokens that the last queries attended to.

    Args:
        budget: input tokens that a KV head reads, or a share of the prompt.
        queries: the last ones, which choose.
        full: the first layers, which read all slots.
        refresh: tokens between choices, at least 2.

    Raises:
        MethodError: a number out of range.
    """
    if queries < 1 or full < 0 or refresh < 2:
        raise MethodError(
            f"queries={queries}, full={full}, refresh={refresh}: use at least 1, 0, 2"
        )

    def begin(layer, prefix):
        """Return the end of the input; its last token has no slot when it is read."""
        return jnp.minimum(layer.prompt - 1, prefix)

    def score(layer, asked):
        tokens = asked.seen.sum(-1, dtype=jnp.int32) - 1
        held = layer.tokens(asked.prefix)
        q = asked.q.reshape(*asked.q.shape[:2], -1, asked.q.shape[-1])
        weight = jnp.where(tokens < 0, 0.0, 1.0)
        sums = layer.received(q, weight, tokens, held)
        old = (held >= 0) & (held < begin(layer, asked.prefix)[:, None, None])
        return jnp.where(old, sums, -jnp.inf)[:, :, None]

    rule = selected.Rule(
        score,
        begin=begin,
        span=lambda sizes: sizes.new,
        queries=queries,
        cost=1 / 2,
    )
    return selected.policy(rule, budget, selected.own(full), refresh)
