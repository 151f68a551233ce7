"""EAGLE: one decoder layer continues the target's features, token by token.

Li, Wei, Zhang, Zhang, *EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty*, 2024, arXiv 2401.15077, section 4.1; *EAGLE-2*, 2024, arXiv 2406.16858,
is this drafter with `topologies/eagle2`. The draft layer reads pairs (x_{t+1}, f_t),

    f^_{t+1} = Layer(fc [e(x_{t+1}) ; f_t]),    q(x_{t+2}) = softmax(W_lm f^_{t+1})

with f_t the target's normed state for committed tokens, and the parent's own output f^
for drafts. f^ at the root → `Row.feature`; the layer's keys → `Row.cache`, which after
a round holds the pair of every committed token, made from true features.

Deviations from the paper: none. A text whose prompt is one token has no feature yet;
its first round drafts from f^ = 0.

Cost per call: one layer and one head over the nodes of each level but the last, and the
layer over the round's committed tokens. No model call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.heads import eagle, layers

CARD = Card(
    paper="EAGLE, arXiv 2401.15077",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    feature: Array  # float[B, D]: f^ at the root
    cache: Any  # the draft layer's: the pairs of all committed tokens but the first
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/eagle.py`."""
    eagle.check(heads, model.config)
    target = model.config

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        grown = topology.init(batch)
        cache = layers.cache(heads["layer"], batch, size + sum(topology.run))
        feature = jnp.zeros((batch, target.d_model), heads["fuse"].dtype)
        return base.State(Row(feature, cache, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row, params = state.row, ctx.params

        def call(cache, above, block, level: int):
            embedded = model.embed(params["target"], block.tokens, block.positions)
            block = replace(block, positions=block.positions - 1)
            own, cache = eagle.block(
                params["heads"], target, cache, embedded, above, block
            )
            return model.head(params["target"], own), own, cache

        logits = model.head(params["target"], row.feature[:, None])[:, 0]
        own = base.State(row.grown, state.shared)
        nodes, grown, cache = drafting.sprout(
            call,
            row.cache,
            row.cache.length - 1,  # the root's pair is the last that is committed
            ctx,
            topology,
            keys,
            own,
            logits,
            row.feature[:, None],
        )
        nodes = replace(nodes, calls=nodes.calls + 1)
        row = Row(row.feature, cache, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        own = base.State(row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        pairs = reading.pairs(outcome, row.cache)
        embedded = model.embed(ctx.params["target"], pairs.tokens, pairs.positions + 1)
        features = reading.states(outcome, "norm")
        found, cache = eagle.block(
            ctx.params["heads"], target, row.cache, embedded, features, pairs
        )
        feature, cache = reading.settle(outcome, found, row.feature, cache)
        return base.State(Row(feature, cache, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=("norm",),
        blocks=topology.blocks,
    )
