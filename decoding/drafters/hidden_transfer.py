"""Hidden Transfer: pseudo states, born mid-network, guess the tokens after the next.

Wu, Liu, Gong, Wang, Li, Wang, Cai, Zhao, *Parallel Decoding via Hidden Transfer for
Lossless Large Language Model Acceleration*, 2024, arXiv 2404.12022. Every node of the
tree carries k AUX nodes, whose states at the entry of layer l are T_j h of their node;
with a the last accepted node of a round, which chose the next root,

    q_j = softmax(target from layer l on(text .. a, T_1 h_a, .., T_j h_a)),  j = 1 .. k

is the law of the children of every node at depth j - 1 of the next round's tree.
q → `Row.laws`; how many of them there are → `Row.known`; T is in
`models/heads/hidden_transfer.py`. The tree of candidates is the topology's.

Deviations from the paper: a reconstruction from the abstract; one layer for all j,
where the paper's may differ. Nothing is drafted in the first round, since the prompt's
chunks carry no pseudo states. Below layer l the AUX nodes run as tokens that nobody
sees, since a block has one width.

Cost per call: no model call; the target's block is (1 + k) times as wide, and k
products [D, D] a node.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from decoding.riders import Riders
from models.heads import hidden_transfer

CARD = Card(
    paper="Hidden Transfer, arXiv 2404.12022",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    laws: Array  # float32[B, k, V]: raw logits, of the states behind the last node
    known: Array  # int32[B]: how many of those states there were, k or 0
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology, layer: int = -1) -> base.Drafter:
    """Draft with `params["heads"]`, born at the entry of `layer` (-1: the middle)."""
    hidden_transfer.check(heads, model.config)
    layer = hidden_transfer.middle(model.config, layer)
    steps = hidden_transfer.count(heads)
    reading.check_depth("Hidden Transfer", topology, steps)
    vocab = model.config.vocab_size
    riders = Riders(topology.nodes, steps, 1, vocab)

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        grown = topology.init(batch)
        laws = jnp.zeros((batch, steps, vocab), jnp.float32)
        row = Row(laws, jnp.zeros((batch,), jnp.int32), grown.row)
        return base.State(row, grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row = state.row

        def call(cache, above, block, level: int):
            shape = (*block.tokens.shape, vocab)
            return jnp.broadcast_to(row.laws[:, level, None], shape), (), cache

        own = base.State(row.grown, state.shared)
        nodes, grown, _ = drafting.sprout(
            call, (), ctx.length - 1, ctx, topology, keys, own, row.laws[:, 0]
        )
        nodes = riders.attach(nodes, row.known)
        return nodes, base.State(row.replace(grown=grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.warped is None:
            return state
        row = state.row
        own = riders.learn(topology, base.State(row.grown, state.shared), outcome)
        laws, known = riders.read(outcome, row.laws, row.known)
        return base.State(Row(laws, known, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        riders.nodes,
        topology.depth + steps,
        wrap=lambda lm: hidden_transfer.wrapped(lm, layer, topology.nodes),
        weights=lambda params, _: hidden_transfer.weights(
            params["target"], params["heads"]
        ),
    )
