"""Clover: recurrent heads, which read every drafted token, for small trees.

Xiao, Shi, Nie, Yang, Deng, Su, Chen, Cui, *Clover: Regressive Lightweight Speculative
Decoding with Sequential Knowledge*, 2024, arXiv 2405.00263, in the form of Xiao, Gui,
Su, Chen, *Clover-2*, 2024, arXiv 2408.00264. With h_t the state, before its norm, from
which the target chose the root x_{t+1}, and nodes at depth i that bear x_{t+1+i},

    s_0 = Augment(h_t, e(x_{t+1})),      s of a node = cell(s of its parent, e(x))
    q = softmax(W_lm head(s, e(x)))      for the children of that node

s_0 → `Row.state`; the augmenting layers read the pairs of all committed tokens, and
their keys are → `Row.caches`. The heads are `models/heads/clover.py`.

Deviations from the paper: Clover's own attention decoder is not told precisely enough
to be rebuilt, so that Clover-2's cell, which is public, stands for it in both. A token
is read through the target's embedding; the official code reads the row of its LM head.
The paper's candidates, filtered by top-p and by a share of the best token, are the
topology's business (`transforms/top_p` warps drafts as well). A text whose prompt is
one token has no h yet; its first round drafts from s = 0.

Cost per call: the cell and one product [2 D, D] for the nodes of each level, and the
target's head; the augmenting layers over the round's committed tokens. No model call.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.heads import clover, layers

CARD = Card(
    paper="Clover-2, arXiv 2408.00264 (Clover, arXiv 2405.00263)",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    state: Array  # float[B, D]: s_0, which has read the root
    caches: tuple  # of each augmenting layer: the pairs of all but the first token
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/clover.py`."""
    clover.check(heads, model.config)
    target = model.config
    eps = layers.geometry(target).norm_eps
    tap = target.n_layers

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        grown = topology.init(batch)
        caches = tuple(
            layers.cache(heads[f"layer_{i}"], batch, size)
            for i in range(clover.depth(heads))
        )
        state = jnp.zeros((batch, target.d_model), heads["first"].dtype)
        return base.State(Row(state, caches, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row, params, own = state.row, ctx.params["heads"], ctx.params["target"]

        def call(cache, above, block, level: int):
            embedded = model.embed(own, block.tokens, block.positions)
            s = clover.cell(params["cell_1"], above, embedded, eps)
            return model.head(own, clover.other(params, s, embedded, eps)), s, cache

        logits = model.head(own, clover.first(params, row.state[:, None], eps))[:, 0]
        grown = base.State(row.grown, state.shared)
        nodes, grown, _ = drafting.sprout(
            call,
            (),
            ctx.length - 1,
            ctx,
            topology,
            keys,
            grown,
            logits,
            row.state[:, None],
        )
        return nodes, base.State(row.replace(grown=grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        own = base.State(row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        pairs = reading.pairs(outcome, row.caches[0])
        embedded = model.embed(ctx.params["target"], pairs.tokens, pairs.positions + 1)
        hidden = reading.states(outcome, tap)
        found, caches = clover.block(
            ctx.params["heads"], target, row.caches, embedded, hidden, pairs
        )
        settled = [reading.settle(outcome, found, row.state, c) for c in caches]
        after = Row(settled[0][0], tuple(c for _, c in settled), own.row)
        return base.State(after, own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=(tap,),
        blocks=topology.blocks,
    )
