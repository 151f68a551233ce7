"""FSPAD: EAGLE with features that the token samples, and an output for each purpose.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562, sections 3.1 and 3.2. The draft
layer reads pairs (x_{t+1}, f_t),

    u = sample(e(x_{t+1}), fc [e(x_{t+1}) ; f_t]),    [a ; f^_{t+1}] = Layer(u)
    q(x_{t+2}) = softmax(W_lm a)

with f_t the target's normed state for committed tokens and the parent's f^ for drafts;
a is for the law alone. [a ; f^] at the root → `Row.output`; the layer's keys →
`Row.cache`. The paper's tree is `topologies/eagle2`.

Deviations from the paper: none. A text whose prompt is one token has no feature yet;
its first round drafts from zeros.

Cost per call: EAGLE's, with a second MLP beside the layer's, of which `down` is twice
as wide. No model call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.heads import fspad, layers

CARD = Card(
    paper="FSPAD, arXiv 2408.15562",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    output: Array  # float[B, 2 D]: a and f^ at the root
    cache: Any  # the draft layer's: the pairs of all committed tokens but the first
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/fspad.py`."""
    fspad.check(heads, model.config)
    target = model.config

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        grown = topology.init(batch)
        cache = layers.cache(heads["layer"], batch, size + sum(topology.run))
        output = jnp.zeros((batch, 2 * target.d_model), heads["fuse"].dtype)
        return base.State(Row(output, cache, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row, params = state.row, ctx.params

        def laws(output: Array) -> Array:
            return model.head(params["target"], fspad.halves(output)[0])

        def call(cache, above, block, level: int):
            embedded = model.embed(params["target"], block.tokens, block.positions)
            block = replace(block, positions=block.positions - 1)
            feature = fspad.halves(above)[1]
            own, cache = fspad.block(
                params["heads"], target, cache, embedded, feature, block
            )
            return laws(own), own, cache

        own = base.State(row.grown, state.shared)
        nodes, grown, cache = drafting.sprout(
            call,
            row.cache,
            row.cache.length - 1,  # the root's pair is the last that is committed
            ctx,
            topology,
            keys,
            own,
            laws(row.output[:, None])[:, 0],
            row.output[:, None],
        )
        nodes = replace(nodes, calls=nodes.calls + 1)
        row = Row(row.output, cache, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        own = base.State(row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        pairs = reading.pairs(outcome, row.cache)
        embedded = model.embed(ctx.params["target"], pairs.tokens, pairs.positions + 1)
        features = reading.states(outcome, "norm")
        found, cache = fspad.block(
            ctx.params["heads"], target, row.cache, embedded, features, pairs
        )
        output, cache = reading.settle(outcome, found, row.output, cache)
        return base.State(Row(output, cache, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=("norm",),
        blocks=topology.blocks,
    )
