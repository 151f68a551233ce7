"""A draft model: a smaller language model drafts a chain or a tree.

Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*,
2023, arXiv 2211.17192, algorithm 1; Chen et al., *Accelerating Large Language Model
Decoding with Speculative Sampling*, 2023, arXiv 2302.01318. With q the draft's warped
law:

    x_i ~ q(. | prefix, x_<i),  i = 1 .. gamma      (gamma: the topology's depth)

The draft's cache holds what it has seen of the committed text: all but the last token,
or all but the last two where the deepest draft, which it never forwards, was accepted.
Each round begins with a block of two that catches up.

Cost per call: gamma draft calls, the first of two nodes.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from decoding import base, drafting
from decoding.catalogue import Card
from models.base import causal_block

CARD = Card(
    paper="Speculative decoding, arXiv 2211.17192",
    guarantee=base.LAW,
    needs=("draft", "topology"),
    trained=True,
)


def drafter(draft, topology: base.Topology) -> base.Drafter:
    """Draft with `draft`, a `LanguageModel` whose params are `params["draft"]`."""
    model = draft

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
        cache = model.init_cache(batch, size + topology.nodes + 1, dtype)
        grown = topology.init(batch)
        return base.State((cache, grown.row), grown.shared)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        cache, row = state.row
        params = ctx.params["draft"]
        logits, cache = drafting.root_logits(model, params, cache, ctx)
        nodes, grown, cache = drafting.grow(
            model,
            params,
            cache,
            ctx,
            topology,
            keys,
            base.State(row, state.shared),
            logits,
        )
        nodes = replace(nodes, calls=topology.depth)
        return nodes, base.State((cache, grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, row = state.row
        verdict, nodes = outcome.verdict, outcome.tree
        if outcome.warped is None:
            count = verdict.count + 1
            block = causal_block(nodes.tokens, cache.length, count, cache.size)
            _, cache = model(ctx.params["draft"], cache, block)
            cache = cache.commit(verdict.path, verdict.count, linear=True)
            return base.State((cache, row), state.shared)
        seen = jnp.minimum(verdict.count, topology.depth - 1)
        cache = cache.commit(verdict.path, seen, topology.linear)
        grown = topology.adapt(base.State(row, state.shared), outcome)
        return base.State((cache, grown.row), grown.shared)

    return base.Drafter(init, draft_tree, observe, topology.nodes, topology.depth)
