"""Medusa: heads on the target's last state guess the tokens after the next one.

Cai, Li, Geng, Peng, Lee, Chen, Dao, *Medusa: Simple LLM Inference Acceleration
Framework with Multiple Decoding Heads*, 2024, arXiv 2401.10774, sections 2.1 and 2.3.3.
With h_t the normed state from which the target chose the root x_{t+1}, the law of the
children of *every* node at depth i is that of head i,

    q_i = softmax(head_i(h_t)),    i = 0, 1, ..., K - 1

h is kept from round to round; the heads are `models/heads/medusa.py` (those without
output layers of their own use the target's head), and the tree is the topology's (the
paper's: a static one, `configs/trees/medusa.py`).

Deviations from the paper: a text whose prompt is one token has no h yet; its first
round drafts from h = 0. As for every drafter, the topology and the verifier decide how
a law is warped and perturbed before children are drawn.

Cost per call: K residual blocks and K products [D, V] a row; no model call.
"""

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.heads import medusa

CARD = Card(
    paper="Medusa, arXiv 2401.10774",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("cai2024medusa",),
)


def drafter(heads, model, topology: base.Topology, blocks: int = 1) -> base.Drafter:
    """Draft with `params["heads"]`; `blocks` residual blocks a head, weights shared."""
    medusa.check(heads, model.config)
    draft_head.check_depth("Medusa", topology, medusa.count(heads))

    def init(ctx: base.Context) -> tuple:
        shape = (ctx.tokens.shape[0], model.config.d_model)
        return jnp.zeros(shape, heads["res"].dtype), ()

    def start(ctx: base.Context, hidden: Array, cache: tuple) -> draft_head.Start:
        def output(z: Array) -> Array:
            return model.head(ctx.params["target"], z)

        laws = medusa.logits(ctx.params["heads"], hidden, blocks, output)
        laws = laws.swapaxes(0, 1)
        return draft_head.marginal(ctx, topology, laws)

    def read(ctx: base.Context, hidden: Array, cache: tuple, outcome: base.Outcome):
        return draft_head.last_state(outcome, "norm", hidden), ()

    return draft_head.drafter(topology, init, start, read, ("norm",))
