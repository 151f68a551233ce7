"""A draft model: a smaller language model drafts a chain or a tree.

Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*,
2023, arXiv 2211.17192, algorithm 1; Chen et al., *Accelerating Large Language Model
Decoding with Speculative Sampling*, 2023, arXiv 2302.01318. With q the draft's warped
law:

    x_i ~ q(. | prefix, x_<i),  i = 1 .. gamma      (gamma: the topology's depth)

The draft model's cache lacks the last token of the committed text. It lacks the last
two where the round accepted a leaf of the tree, which the model did not run. Each round
begins with a block of two tokens that catches up.

Cost per call: gamma draft calls, the first of two nodes; fewer if the topology stops.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_model, grow
from models.cache_layouts import held

CARD = Card(
    paper="Speculative decoding, arXiv 2211.17192",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    sources=("leviathan2023fast", "chen2023accelerating"),
)

CHUNK = 16  # tokens of a block that catches up after rounds without a draft


def drafter(draft, topology: base.Topology) -> base.Drafter:
    """Draft with `draft`, a `LanguageModel` whose params are `params["draft"]`."""
    model = draft

    def init(ctx: base.Context) -> base.State:
        return first_state(model, topology, ctx)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        return propose(model, topology, keys, ctx, state)

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, row = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
            return base.State((cache, row), state.shared)
        if outcome.is_pause:
            return state  # the next draft reads what was missed
        cache = draft_model.commit(cache, topology, outcome)
        grown = topology.adapt(base.State(row, state.shared), outcome)
        return base.State((cache, grown.row), grown.shared)

    return base.Drafter(
        init,
        draft_tree,
        observe,
        topology.nodes,
        topology.depth,
        blocks=topology.blocks,
        pauses=True,
    )


def first_state(
    model, topology: base.Topology, ctx: base.Context, block: int = CHUNK
) -> base.State:
    """Make `model`'s empty cache, whose layers hold their windows, and the topology's.

    Args:
        model: the draft model.
        topology: of the trees.
        ctx: before the prompts are read.
        block: tokens of a block that catches up, at most.
    """
    batch, size = ctx.tokens.shape
    dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
    grows = sum(topology.run) + 1
    make = functools.partial(model.init_cache, batch, size + grows, dtype)
    # A round's first block may go two tokens past what was committed, with no commit.
    cache = held.windowed(make, held.windows_of(model.config), max(grows, block) + 2)
    grown = topology.init(batch)
    return base.State((cache, grown.row), grown.shared)


def propose(
    model, topology: base.Topology, keys, ctx: base.Context, state: base.State
) -> tuple:
    """Draft one tree with `model`; `state.row` is its cache and the topology's row."""
    cache, row = state.row
    params, taps = ctx.params["draft"], draft_model.taps(topology)

    def root(cache):
        return draft_model.root(model, params, cache, ctx, taps)

    def after_a_pause(cache):
        """Run the root after rounds without a draft, which left the cache behind."""
        cache, late = draft_model.catch_up(model, params, cache, ctx, CHUNK)
        logits, states, cache = root(cache)
        return logits, states, late, cache

    if topology.more is None and ctx.depth is None:
        logits, states, cache = root(cache)
        late = jnp.int32(0)
    else:
        grows = grow.grows(topology, base.State(row, state.shared))
        shapes = jax.eval_shape(lambda c: after_a_pause(c)[:3], cache)
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        pause = lambda c: (*none, c)
        logits, states, late, cache = lax.cond(grows, after_a_pause, pause, cache)
    nodes, grown, cache = grow.grow(
        model,
        params,
        cache,
        ctx,
        topology,
        keys,
        base.State(row, state.shared),
        logits,
        states,
    )
    nodes = replace(nodes, calls=nodes.calls + 1 + late)
    return nodes, base.State((cache, grown.row), grown.shared), ctx.cache
