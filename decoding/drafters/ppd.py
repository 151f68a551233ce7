"""PPD: trained prompt tokens in the target's own block guess the tokens after the next.

Chen, Luk, Yiu, Li, Mishchenko, Venieris, Fan, *Hardware-Aware Parallel Prompt Decoding
for Memory-Efficient Acceleration of LLM Inference*, 2024, arXiv 2405.18628, sections 3
and 4. Every node of the tree carries m prompt tokens z_1 .. z_m as AUX nodes behind it;
with a the last accepted node of a round, which chose the next root,

    q_i = softmax(mean over copies of target(text .. a, z_1 .. z_i)),   i = 1 .. m

is the law of the children of *every* node at depth i - 1 of the next round's tree.
q → `Row.laws`; how many of them there are → `Row.known`; the prompts' embeddings are
`models/heads/ppd.py`. The tree of candidates is the topology's.

With a `plan` (section 4.1, the dynamic sparse tree; `decoding/prompt_trees.py` makes
it) the nodes carry as many prompts as they deserve, and the tree is that of the state,
which is the number of prompts that the last accepted node had.

Deviations from the paper: nothing is drafted in the first round, since the prompt's
chunks carry no prompt tokens. Without a plan every node carries all m.

Cost per call: no model call; the target's block is (1 + m copies) times as wide, less
what a plan leaves out, and its head reads all of it.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, drafting, reading
from decoding.catalogue import Card
from decoding.riders import Riders
from models.heads import ppd

CARD = Card(
    paper="PPD, arXiv 2405.18628",
    guarantee=base.LAW,
    needs=("heads", "model", "topology"),
    trained=True,
)


@struct.dataclass
class Row:
    """One row's state."""

    laws: Array  # float32[B, m, V]: raw logits, of the prompts behind the last node
    known: Array  # int32[B]: how many of those prompts there were
    grown: Any  # the topology's


def drafter(
    heads, model, topology: base.Topology, plan: tuple[tuple[int, ...], ...] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`; `plan` as in `riders.Riders`, by the tree's nodes.

    A plan is for static trees: it names their nodes.
    """
    ppd.check(heads, model.config)
    prompts, copies = ppd.counts(heads)
    reading.check_depth("PPD", topology, prompts)
    vocab = model.config.vocab_size
    riders = Riders(topology.nodes, prompts, copies, vocab, plan)

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        grown = topology.init(batch)
        laws = jnp.zeros((batch, prompts, vocab), jnp.float32)
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
        topology.depth + prompts,
        wrap=ppd.wrapped,
        weights=lambda params, _: ppd.weights(params["target"], params["heads"]),
    )
