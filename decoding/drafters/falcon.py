"""Falcon: features of k tokens in one pass of the draft layer, block after block.

Gao, Xie, Xiang, Ji, *Falcon: Faster and Parallel Inference of Large Language Models
through Enhanced Semi-Autoregressive Drafting and Custom-Designed Decoding Tree*, 2025,
arXiv 2412.12639, section 3. With pairs (x_{t+1}, f_t) of a token and the target's
normed state before it, for drafts the draft's own f^,

    u = LSTM([e(x) ; f])                              pair by pair, along each path
    f^_{t+1} .. f^_{t+k} = Layer(the k last pairs, up to t, which all see one another)
    q(x_{t+1+j}) = softmax(W_lm f^_{t+j}),   j = 1 .. k

The block that ends with the root gives the laws of depths 0 .. k - 1, which are the
same for all nodes of a depth; a node at depth k closes the next block on its path, and
so on. The LSTM's state at the root → `Own.memory`; u of the last k committed
pairs → `Own.recent`; the keys of all are kept too. Params are those of
`models/heads/falcon.py`.

The tree is the topology's; two of the authors' are in `configs/trees/falcon.py`.

Deviations from the paper: the authors' `tree_2` to `tree_6`, in which some of a node's
likelier children are left out, are grown by no topology here. A text whose prompt is
one token has no feature yet; its first round drafts from zeros.

Cost per call: the LSTM for the nodes of each level but the last, and every k levels the
layer for k queries a node; both over the round's committed tokens. No model call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.base import Visibility
from models.heads import falcon
from models.heads.modules import decoder_layer

CARD = Card(
    paper="Falcon, arXiv 2412.12639",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("gao2025falcon",),
)


@struct.dataclass
class Own:
    """The head's state of one row's text."""

    memory: Array  # float[B, M]: the LSTM's state after the root
    recent: Array  # float[B, k, D]: u of the last committed pairs, 0 before the first


def drafter(heads, model, topology: base.Topology, k: int = 2) -> base.Drafter:
    """Draft with `params["heads"]` in blocks of `k` tokens."""
    falcon.check(heads, model.config, k)
    target = model.config

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        dtype = heads["layer"]["qkv"].dtype
        cache = decoder_layer.cache(heads["layer"], batch, size + sum(topology.run))
        recent = jnp.zeros((batch, k, target.d_model), dtype)
        return Own(falcon.start(heads, batch, dtype), recent), cache

    def start(ctx: base.Context, state: Own, cache: Any) -> draft_head.Start:
        params, target_params = ctx.params["heads"], ctx.params["target"]

        def call(cache, above, block, level: int):
            memory, recent, drafted = above
            embedded = model.embed(target_params, block.tokens, block.positions)
            feature = drafted[:, :, (level - 1) % k]
            u, memory = falcon.fused(params, embedded, feature, memory)
            recent = jnp.concatenate([recent[:, :, 1:], u[:, :, None]], 2)
            block = replace(block, positions=block.positions - 1)
            cache = falcon.note(params, target, cache, u, block)
            if level % k == 0:
                drafted = falcon.block(
                    params, target, cache, recent, block.positions, block.visibility
                )
            laws = model.head(target_params, drafted[:, :, level % k])
            return laws, (memory, recent, drafted), cache

        recent = state.recent[:, None]
        nothing = jnp.zeros((recent.shape[0], 1, 1), jnp.uint32)
        last = (cache.length - 1)[:, None]
        everything = Visibility(cache.length, nothing)
        drafted = falcon.block(params, target, cache, recent, last, everything)
        logits = model.head(target_params, drafted[:, :, 0])[:, 0]
        handed = (state.memory[:, None], recent, drafted)
        # The root's pair is the last that is committed.
        return draft_head.Start(call, logits, handed, cache.length - 1)

    def read(ctx: base.Context, state: Own, cache: Any, outcome: base.Outcome):
        params = ctx.params["heads"]
        pairs, embedded = draft_head.read_pairs(model, ctx, cache, outcome)
        features = draft_head.states(outcome, "norm")
        u, memories = falcon.along(params, embedded, features, state.memory)
        cache = falcon.note(params, target, cache, u, pairs)
        memory, cache = draft_head.settle(outcome, memories, state.memory, cache)
        count = jnp.where(outcome.active, outcome.verdict.count, -1)
        at = (count + 1)[:, None] + jnp.arange(k, dtype=jnp.int32)
        joined = jnp.concatenate([state.recent, u.astype(state.recent.dtype)], 1)
        recent = jnp.take_along_axis(joined, at[..., None], 1)
        return Own(memory, recent), cache

    return draft_head.drafter(topology, init, start, read, ("norm",), calls=1)
