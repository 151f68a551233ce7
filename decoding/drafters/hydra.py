"""Hydra: Medusa's heads, conditioned on the tokens drafted before theirs.

Ankner, Parthasarathy, Nrusimha, Rinard, Ragan-Kelley, Brandon, *Hydra: Sequentially-
Dependent Draft Heads for Medusa Decoding*, 2024, arXiv 2402.05109, sections 3 and 4.
With h_t the normed state from which the target chose the root x_{t+1}, the law of the
children of a node at depth i, whose path holds the drafts x_{t+2} .. x_{t+1+i}, is

    q_i = softmax(head_i([g_t ; e(x_{t+1}) ; ... ; e(x_{t+1+i})]))

g = h, or in Hydra++ the output of the prefix layer over the h of all committed tokens,
which has a cache of its own. g and that cache are the state; the heads are
`models/heads/hydra.py`. Heads whose config has a `prefix` are Hydra++'s.

Deviations from the paper: none in the law. Every node that is run is embedded, not only
those that the code's order takes to have children. A text whose prompt is one token
has no h yet; its first round drafts from g = 0.

Cost per call: head i once for all nodes of depth i; with a prefix, one layer over the
round's committed tokens. No model call.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.heads import hydra
from models.heads.modules import decoder_layer

CARD = Card(
    paper="Hydra, arXiv 2402.05109",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("ankner2024hydra",),
)


def drafter(heads, model, topology: base.Topology, blocks: int = 4) -> base.Drafter:
    """Draft with `params["heads"]`; `blocks` counts the residual blocks of a head.

    `blocks` matters only where the params have weights of further blocks.
    """
    hydra.check(heads, model.config)
    draft_head.check_depth("Hydra", topology, hydra.count(heads))
    prefix = hydra.config_of(heads).prefix

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        dtype = heads["head_0"]["skip"].dtype
        cache = decoder_layer.cache(heads["prefix"], batch, size) if prefix else ()
        return jnp.zeros((batch, model.config.d_model), dtype), cache

    def start(ctx: base.Context, g: Array, cache: Any) -> draft_head.Start:
        params = ctx.params["heads"]

        def embed(tokens: Array, positions: Array) -> Array:
            return model.embed(ctx.params["target"], tokens, positions)

        def call(cache, above, block, level: int):
            embedded = jnp.concatenate(
                [above, embed(block.tokens, block.positions)[..., None, :]], -2
            )
            return hydra.logits(params, level, embedded, blocks), embedded, cache

        at = (ctx.length - 1)[:, None]
        first = jnp.stack([g[:, None], embed(ctx.root[:, None], at)], -2)
        logits = hydra.logits(params, 0, first, blocks)[:, 0]
        return draft_head.Start(call, logits, first)

    def read(ctx: base.Context, g: Array, cache: Any, outcome: base.Outcome):
        if not prefix:
            return draft_head.last_state(outcome, "norm", g), ()
        pairs = draft_head.pairs(outcome, cache)
        hidden = draft_head.states(outcome, "norm")
        outputs, cache = hydra.prefix_block(
            ctx.params["heads"], model.config, cache, hidden, pairs
        )
        return draft_head.settle(outcome, outputs, g, cache)

    return draft_head.drafter(topology, init, start, read, ("norm",))
