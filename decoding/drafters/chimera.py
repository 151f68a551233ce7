"""Chimera: trigrams of the draft's tokens, fused with every state of the target.

Zeng, Yu, Pang, Wang, Zhuang, Shao, Zou, *Chimera: A Lossless Decoding Method for
Accelerating Large Language Models Inference by Fusing all Tokens*, 2024, arXiv
2402.15758, section 3. With h_t the normed state from which the target chose the root
x_{t+1}, and a node at depth i whose path ends in the tokens x_{t-1+i}, x_{t+i},
x_{t+1+i},

    g = trigram of these three,    o = Layer(g),    q = softmax(U_i [h_t ; o])

is the law of its children. The layer sees the states h and the trigrams of all
committed tokens, in a cache with two slots a token. It also sees the trigrams on the
node's path. [h_t ; o] at the root is kept. The heads are `models/heads/chimera.py`; the
authors' tree is EAGLE's static one.

Deviations: those of `models/heads/chimera.py`, of the steps after the first. A text
whose prompt is one token has no h yet; its first round drafts from zeros.

Cost per call: the trigram's two products, one layer and head i for the nodes of each
level but the last, and the layer over twice the round's committed tokens. No model
call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base, tree
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.base import causal_block
from models.heads import chimera
from models.heads.modules import decoder_layer

CARD = Card(
    paper="Chimera, arXiv 2402.15758",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("zeng2024chimera",),
)


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/chimera.py`."""
    chimera.check(heads, model.config)
    draft_head.check_depth("Chimera", topology, chimera.count(heads))
    target = model.config
    dim = target.d_model

    def embed(ctx: base.Context, positions: Array) -> Array:
        """Embed the text's tokens at `positions` [B, ...]; 0 before the text."""
        flat = positions.reshape(positions.shape[0], -1)
        tokens = jnp.take_along_axis(ctx.tokens, jnp.maximum(flat, 0), 1, mode="clip")
        embedded = model.embed(ctx.params["target"], tokens, jnp.maximum(flat, 0))
        embedded = jnp.where(flat[..., None] >= 0, embedded, 0.0)
        return embedded.reshape(*positions.shape, dim)

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        cache = decoder_layer.cache(heads["layer"], batch, 2 * size + sum(topology.run))
        return jnp.zeros((batch, 2 * dim), heads["head"].dtype), cache

    def start(ctx: base.Context, state: Array, cache: Any) -> draft_head.Start:
        params = ctx.params["heads"]
        hidden, output = state[:, None, :dim], state[:, None, dim:]

        def call(cache, above, block, level: int):
            embedded = model.embed(ctx.params["target"], block.tokens, block.positions)
            three = jnp.concatenate([above, embedded[..., None, :]], -2)
            g = chimera.trigram(params, three)
            outputs, cache = chimera.block(params, target, cache, g, block)
            beside = jnp.broadcast_to(hidden, outputs.shape)
            laws = chimera.logits(params, level, beside, outputs)
            return laws, three[..., 1:, :], cache

        last = (ctx.length - 2)[:, None, None] + jnp.arange(2, dtype=jnp.int32)
        logits = chimera.logits(params, 0, hidden, output)[:, 0]
        # The root's trigram is the last that is committed.
        return draft_head.Start(call, logits, embed(ctx, last), cache.length - 1)

    def read(ctx: base.Context, state: Array, cache: Any, outcome: base.Outcome):
        params = ctx.params["heads"]
        hidden = draft_head.states(outcome, "norm")
        batch, size = hidden.shape[:2]
        count = tree.committed(outcome.tree, outcome.verdict)[1]
        count = jnp.where(outcome.active, count, 0)
        start, step = cache.length, jnp.arange(2 * size, dtype=jnp.int32)
        none = jnp.zeros((batch, 2 * size), jnp.int32)
        block = causal_block(none, start, 2 * count, cache.size)
        at = (start // 2)[:, None] + step // 2 + step % 2
        block = replace(block, positions=at)
        three = at[:, 1::2, None] + jnp.arange(-2, 1, dtype=jnp.int32)
        g = chimera.trigram(params, embed(ctx, three)).astype(hidden.dtype)
        both = jnp.stack([hidden, g], 2).reshape(batch, 2 * size, dim)
        outputs, after = chimera.block(params, target, cache, both, block)
        pair = jnp.concatenate([hidden, outputs[:, 1::2]], -1)
        last, _ = draft_head.settle(outcome, pair, state, cache)
        return last, after.commit(none[:, :0], 2 * count - 1, linear=True)

    return draft_head.drafter(topology, init, start, read, ("norm",), calls=1)
