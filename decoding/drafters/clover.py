"""Clover: recurrent heads, which read every drafted token, for small trees.

Xiao, Shi, Nie, Yang, Deng, Su, Chen, Cui, *Clover: Regressive Lightweight Speculative
Decoding with Sequential Knowledge*, 2024, arXiv 2405.00263, in the form of Xiao, Gui,
Su, Chen, *Clover-2*, 2024, arXiv 2408.00264. With h_t the state, before its norm, from
which the target chose the root x_{t+1}, and nodes at depth i that bear x_{t+1+i},

    s_0 = Augment(h_t, e(x_{t+1})),      s of a node = cell(s of its parent, e(x))
    q = softmax(W_lm head(s, e(x)))      for the children of that node

The state is s_0 and the keys of the augmenting layers, which read the pairs of all
committed tokens. The heads are `models/heads/clover.py`.

Deviations from the paper: Clover's own attention decoder is not described precisely
enough to be rebuilt, so Clover-2's cell, which is public, replaces it in both. The
paper's filters of candidates, by top-p and by a share of the best token, are left
to the topology (`transforms/top_p` warps drafts as well). A text whose prompt is
one token has no h yet; its first round drafts from s = 0.

Cost per call: the cell and one product [2 D, D] for the nodes of each level, and the
target's head; the augmenting layers over the round's committed tokens. No model call.
"""

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.heads import clover
from models.heads.modules import decoder_layer

CARD = Card(
    paper="Clover-2, arXiv 2408.00264 (Clover, arXiv 2405.00263)",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("xiao2024clover2", "xiao2024clover"),
)


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/clover.py`."""
    clover.check(heads, model.config)
    target = model.config
    eps = decoder_layer.geometry(target).norm_eps
    tap = target.n_layers

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        caches = tuple(
            decoder_layer.cache(heads[f"layer_{i}"], batch, size)
            for i in range(clover.depth(heads))
        )
        return jnp.zeros((batch, target.d_model), heads["first"].dtype), caches

    def start(ctx: base.Context, state: Array, caches: tuple) -> draft_head.Start:
        params, target_params = ctx.params["heads"], ctx.params["target"]

        def call(cache, above, block, level: int):
            embedded = model.embed(target_params, block.tokens, block.positions)
            embedded = clover.read(target_params, block.tokens, embedded)
            s = clover.cell(params["cell_1"], above, embedded, eps)
            return (
                model.head(target_params, clover.other(params, s, embedded, eps)),
                s,
                cache,
            )

        root = state[:, None]
        logits = model.head(target_params, clover.first(params, root, eps))[:, 0]
        return draft_head.Start(call, logits, root)

    def read(ctx: base.Context, state: Array, caches: tuple, outcome: base.Outcome):
        pairs, embedded = draft_head.read_pairs(model, ctx, caches[0], outcome)
        embedded = clover.read(ctx.params["target"], pairs.tokens, embedded)
        hidden = draft_head.states(outcome, tap)
        outputs, caches = clover.block(
            ctx.params["heads"], target, caches, embedded, hidden, pairs
        )
        settled = [
            draft_head.settle(outcome, outputs, state, cache) for cache in caches
        ]
        return settled[0][0], tuple(cache for _, cache in settled)

    return draft_head.drafter(topology, init, start, read, (tap,))
