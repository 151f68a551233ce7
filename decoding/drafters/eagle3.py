"""EAGLE-3: the draft layer reads three layers of the target and its own outputs.

Li, Wei, Zhang, Zhang, *EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test*, 2025, arXiv 2503.01840, section 3.1. Pairs are
(x_{t+1}, g_t) with

    g_t = fc [l_t ; m_t ; h_t]  for committed tokens,    a of the parent  for drafts
    a = Layer(x_{t+1}, g_t),    q(x_{t+2}) = softmax(W norm(a)), on the draft vocabulary

l, m, h: the states that enter the target's layers 2, L // 2, L - 3. a at the root →
`Row.output`; the layer's keys → `Row.cache`. The paper's tree is `topologies/eagle2`.

Deviations from the paper: none. A text whose prompt is one token has no state yet; its
first round drafts from a = 0.

Cost per call: one layer and one (small) head over the nodes of each level but the last,
and the layer over the round's committed tokens. No model call.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.heads import eagle3, layers

CARD = Card(
    paper="EAGLE-3, arXiv 2503.01840",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    output: Array  # float[B, D]: a at the root
    cache: Any  # the draft layer's: the pairs of all committed tokens but the first
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/eagle3.py`."""
    eagle3.check(heads, model.config)
    target = model.config
    eps, taps = layers.geometry(target).norm_eps, eagle3.taps(target)

    def laws(params, a: Array) -> Array:
        found = eagle3.logits(params["heads"], a, eps)
        return eagle3.spread(params["heads"], found, target.vocab_size)

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        grown = topology.init(batch)
        cache = layers.cache(heads["layer"], batch, size + sum(topology.run))
        output = jnp.zeros((batch, target.d_model), heads["fuse"].dtype)
        return base.State(Row(output, cache, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row, params = state.row, ctx.params

        def call(cache, above, block, level: int):
            embedded = model.embed(params["target"], block.tokens, block.positions)
            block = replace(block, positions=block.positions - 1)
            own, cache = eagle3.block(
                params["heads"], target, cache, embedded, above, block
            )
            return laws(params, own), own, cache

        own = base.State(row.grown, state.shared)
        nodes, grown, cache = drafting.sprout(
            call,
            row.cache,
            row.cache.length - 1,  # the root's pair is the last that is committed
            ctx,
            topology,
            keys,
            own,
            laws(params, row.output),
            row.output[:, None],
        )
        nodes = replace(nodes, calls=nodes.calls + 1)
        row = Row(row.output, cache, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, params = state.row, ctx.params
        own = base.State(row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        pairs = reading.pairs(outcome, row.cache)
        embedded = model.embed(params["target"], pairs.tokens, pairs.positions + 1)
        three = jnp.stack([reading.states(outcome, tap) for tap in taps], -2)
        g = eagle3.features(params["heads"], three)
        found, cache = eagle3.block(
            params["heads"], target, row.cache, embedded, g, pairs
        )
        output, cache = reading.settle(outcome, found, row.output, cache)
        return base.State(Row(output, cache, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=tuple(dict.fromkeys(taps)),
        blocks=topology.blocks,
    )
