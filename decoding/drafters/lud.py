"""LUD: placeholders behind the text guess the rest of a lexical unit in one call.

Sun, Zhang, Lin, Zhang, Zhang, Wang, Chen, Song, Zhang, Gai, Xiong, *Decoding at the
Speed of Thought: Harnessing Parallel Decoding of Lexical Units for LLMs*, 2024, arXiv
2405.15208. A reconstruction: the paper's code is not public. Every node carries k
placeholders z_1 .. z_k as AUX nodes behind it; with a the last accepted node of a
round, which chose the next root,

    q_i = softmax(target(text .. a, z_1 .. z_i)),    y_i = arg max q_i,    i = 1 .. k

and y_1 .. y_k are the next round's chain. The verifier decides how many of them are
committed. `verifiers/lud` is the paper's, which looks at q alone; any other may replace
it, and the default one leaves the text the target's. The placeholders are PPD's prompt
tokens (`models/heads/ppd.py`, trained by training/objectives/heads/lud.py), and
`decoding/tree_building/aux_nodes.py` carries the laws from round to round.

Deviations from the paper: a unit is committed in the round after the one that guessed
it, which must read its tokens in any case. Nothing is drafted in the first round. The
target itself is not fine-tuned. k = 3 is ours.

Cost per call: no model call; the target's block has (1 + k)(1 + k copies) nodes.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base, tree, vocab
from decoding.catalogue import Card
from decoding.tree_building import aux_nodes
from models.heads import ppd

CARD = Card(
    paper="Lexical unit decoding, arXiv 2405.15208",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model"),
    trained=True,
    sources=("sun2024decoding",),
)


def drafter(heads, model) -> base.Drafter:
    """Draft with the placeholders `params["heads"]`, one token for each."""
    ppd.check(heads, model.config)
    slots, copies = ppd.counts(heads)
    vocab_size = model.config.vocab_size
    behind = aux_nodes.AuxNodes(slots + 1, slots, copies, vocab_size)

    def init(ctx: base.Context) -> base.State:
        return base.State(behind.nothing(ctx))

    def draft(keys, ctx: base.Context, state: base.State):
        row: aux_nodes.Row = state.row
        laws: Array = ctx.warp(row.laws)
        tokens = vocab.argmax(laws)
        laws = jnp.pad(laws, ((0, 0), (0, 1), (0, 0)))  # the last has no children
        nodes = tree.chain(ctx.root, tokens, row.known, logits=laws)
        return behind.attach(nodes, row.known), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row: aux_nodes.Row = state.row
        if outcome.is_prompt:
            return state
        if outcome.is_pause:
            return base.State(aux_nodes.passed(row, outcome))
        laws, known = behind.read(outcome, row.laws, row.known)
        return base.State(replace(row, laws=laws, known=known))

    def weights(params: base.Params, state: Any) -> Any:
        return ppd.weights(params["target"], params["heads"])

    return base.Drafter(
        init,
        draft,
        observe,
        behind.nodes,
        2 * slots,
        wrap=ppd.wrapped,
        weights=weights,
        pauses=True,
    )
