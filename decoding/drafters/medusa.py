"""Medusa: heads on the target's last state guess the tokens after the next one.

Cai, Li, Geng, Peng, Lee, Chen, Dao, *Medusa: Simple LLM Inference Acceleration
Framework with Multiple Decoding Heads*, 2024, arXiv 2401.10774, sections 2.1 and 2.3.3.
With h_t
the normed state from which the target chose the root x_{t+1}, the law of the children
of *every* node at depth i is that of head i,

    q_i = softmax(head_i(h_t)),    i = 0, 1, ..., K - 1

h → `Row.hidden`; the heads are `models/heads/medusa.py`, and the tree is the topology's
(the paper's: a static one, `configs/trees/medusa.py`).

Deviations from the paper: a text whose prompt is one token has no h yet; its first
round drafts from h = 0. Which law children are drawn from, warped and perturbed, is the
topology's and the verifier's business, here as for every drafter.

Cost per call: K residual blocks and K products [D, V] a row; no model call.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from models.heads import medusa

CARD = Card(
    paper="Medusa, arXiv 2401.10774",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    hidden: Array  # float[B, D]: h from which the target chose the root
    grown: Any  # the topology's


def drafter(heads, model, topology: base.Topology, blocks: int = 1) -> base.Drafter:
    """Draft with `params["heads"]`; `blocks` residual blocks a head, weights shared."""
    medusa.check(heads, model.config)
    reading.check_depth("Medusa", topology, medusa.count(heads))

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        grown = topology.init(batch)
        hidden = jnp.zeros((batch, model.config.d_model), heads["res"].dtype)
        return base.State(Row(hidden, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        hidden = state.row.hidden
        laws = medusa.logits(ctx.params["heads"], hidden, blocks)  # [K, B, V]

        def call(cache, above, block, level: int):
            shape = (*block.tokens.shape, laws.shape[-1])
            return jnp.broadcast_to(laws[level][:, None], shape), (), cache

        own = base.State(state.row.grown, state.shared)
        at = ctx.length - 1
        nodes, grown, _ = drafting.sprout(
            call, (), at, ctx, topology, keys, own, laws[0]
        )
        return nodes, base.State(Row(hidden, grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        own = base.State(state.row.grown, state.shared)
        if outcome.warped is not None:
            own = topology.adapt(own, outcome)
        hidden = reading.last_state(outcome, "norm", state.row.hidden)
        return base.State(Row(hidden, own.row), own.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=("norm",),
        blocks=topology.blocks,
    )
