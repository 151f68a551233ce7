"""The target as its own draft: every draft must be accepted (the oracle of the tests).

It drafts a tree with the target itself, in the scratch slots of the target's own cache,
and so costs more than plain decoding. A draft that is not accepted shows a fault in
visibility, positions, rollback or randomness that equal output cannot show.

Cost per call: `depth` target calls beside the verification.
"""

from dataclasses import replace

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import grow
from models.base import ALL, causal_block

CARD = Card(
    paper="baseline: the target as its own draft",
    guarantee=base.LAW,
    family="baseline",
    needs=("model", "topology"),
)


def drafter(model, topology: base.Topology) -> base.Drafter:
    """Draft with the target's weights and cache."""

    def init(ctx: base.Context) -> base.State:
        return topology.init(ctx.tokens.shape[0])

    def draft(keys, ctx: base.Context, state: base.State):
        ones = jnp.ones_like(ctx.length)
        block = causal_block(ctx.root[:, None], ctx.cache.length, ones, ctx.cache.size)
        block = replace(block, logits_at=ALL)
        out, cache = model(ctx.params["target"], ctx.cache, block)
        nodes, state, cache = grow.grow(
            model,
            ctx.params["target"],
            cache,
            ctx,
            topology,
            keys,
            state,
            out.logits[:, 0],
        )
        return replace(nodes, calls=nodes.calls + 1), state, cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state if outcome.is_prompt else topology.adapt(state, outcome)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        scratch=sum(topology.run),
        blocks=topology.blocks,
    )
