"""Falcon: features of k tokens in one pass of the draft layer, block after block.

Gao, Xie, Xiang, Ji, *Falcon: Faster and Parallel Inference of Large Language Models
through Enhanced Semi-Autoregressive Drafting and Custom-Designed Decoding Tree*, 2024,
arXiv 2412.12639, section 3. With pairs (x_{t+1}, f_t) of a token and the target's
normed state before it, for drafts the draft's own f^,

    u = LSTM([e(x) ; f])                              pair by pair, along each path
    f^_{t+1} .. f^_{t+k} = Layer(the k last pairs, up to t, which all see one another)
    q(x_{t+1+j}) = softmax(W_lm f^_{t+j}),   j = 1 .. k

The block that ends with the root gives the laws of depths 0 .. k - 1, which are the
same for all nodes of a depth; a node at depth k closes the next block on its path, and
so on. What the LSTM remembers at the root → `Row.memory`; u of the last k committed
pairs → `Row.recent`; the keys of all → `Row.cache`. Params are those of
`models/heads/falcon.py`.

Deviations from the paper: the tree is the topology's; the authors' trees leave out some
of a node's likelier children, which no topology here does. A text whose prompt is one
token has no feature yet; its first round drafts from zeros.

Cost per call: the LSTM for the nodes of each level but the last, and every k levels the
layer for k queries a node; both over the round's committed tokens. No model call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.base import Visibility
from models.heads import falcon, layers

CARD = Card(
    paper="Falcon, arXiv 2412.12639",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    memory: Array  # float[B, M]: the LSTM's, which has read the root
    recent: Array  # float[B, k, D]: u of the last committed pairs, 0 before the first
    cache: Any  # the layer's: the pairs of all committed tokens but the first
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology, k: int = 2) -> base.Drafter:
    """Draft with `params["heads"]` in blocks of `k` tokens."""
    falcon.check(heads, model.config, k)
    target = model.config

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        grown = topology.init(batch)
        dtype = heads["layer"]["qkv"].dtype
        cache = layers.cache(heads["layer"], batch, size + sum(topology.run))
        recent = jnp.zeros((batch, k, target.d_model), dtype)
        memory = falcon.start(heads, batch, dtype)
        return base.State(Row(memory, recent, cache, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row, params, own = state.row, ctx.params["heads"], ctx.params["target"]

        def call(cache, above, block, level: int):
            memory, recent, drafted = above
            embedded = model.embed(own, block.tokens, block.positions)
            feature = drafted[:, :, (level - 1) % k]
            u, memory = falcon.fused(params, embedded, feature, memory)
            recent = jnp.concatenate([recent[:, :, 1:], u[:, :, None]], 2)
            block = replace(block, positions=block.positions - 1)
            cache = falcon.note(params, target, cache, u, block)
            if level % k == 0:
                drafted = falcon.block(
                    params, target, cache, recent, block.positions, block.visibility
                )
            laws = model.head(own, drafted[:, :, level % k])
            return laws, (memory, recent, drafted), cache

        cache, recent = row.cache, row.recent[:, None]
        nothing = jnp.zeros((recent.shape[0], 1, 1), jnp.uint32)
        last = (cache.length - 1)[:, None]
        everything = Visibility(cache.length, nothing)
        drafted = falcon.block(params, target, cache, recent, last, everything)
        grown = base.State(row.grown, state.shared)
        nodes, grown, cache = drafting.sprout(
            call,
            cache,
            cache.length - 1,  # the root's pair is the last that is committed
            ctx,
            topology,
            keys,
            grown,
            model.head(own, drafted[:, :, 0])[:, 0],
            (row.memory[:, None], recent, drafted),
        )
        nodes = replace(nodes, calls=nodes.calls + 1)
        row = row.replace(cache=cache, grown=grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, params = state.row, ctx.params["heads"]
        own = base.State(row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        pairs = reading.pairs(outcome, row.cache)
        embedded = model.embed(ctx.params["target"], pairs.tokens, pairs.positions + 1)
        features = reading.states(outcome, "norm")
        u, memories = falcon.along(params, embedded, features, row.memory)
        cache = falcon.note(params, target, row.cache, u, pairs)
        memory, cache = reading.settle(outcome, memories, row.memory, cache)
        count = jnp.where(outcome.active, outcome.verdict.count, -1)
        at = (count + 1)[:, None] + jnp.arange(k, dtype=jnp.int32)
        joined = jnp.concatenate([row.recent, u.astype(row.recent.dtype)], 1)
        recent = jnp.take_along_axis(joined, at[..., None], 1)
        return base.State(Row(memory, recent, cache, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=("norm",),
        blocks=topology.blocks,
    )
