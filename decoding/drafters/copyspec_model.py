"""CopySpec before a draft model: copy where the text repeats itself, else draft.

Dumitru, Yang, Yadav, Surdeanu, *CopySpec: Accelerating LLMs with Speculative
Copy-and-Paste*, 2025, arXiv 2502.08923, section 3 (copying merged with speculative
decoding): a round without a match is left to a draft model.

    draft = the block after the first occurrence of the last gamma tokens, if any
            the draft model's tree (in the paper a chain of 5), else

gamma, copy → `drafters/copyspec`, the chain → `drafters/model` and its topology.

Deviations from the paper: rows of a batch choose for themselves, and the model runs
unless all of them copy. A copied block has one-hot laws q, so that rejection schemes
accept its tokens with probability p; the official code accepts them at temperature > 0
only where p is 1.

Cost per call: that of CopySpec; where a row finds no match also that of the draft
model, which first reads the tokens copied since it last ran, 16 a call.
"""

from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.drafters import copyspec, model
from decoding.tree_building import draft_model

CARD = Card(
    paper="CopySpec, arXiv 2502.08923",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    examples={"gamma": 2, "copy": 4},
    sources=("dumitru2025copyspec",),
)


@struct.dataclass
class Row:
    """The draft model's state, and whose draft the round verifies."""

    written: tuple  # of `drafters/model`: its cache, and the row of `_unless_copied`
    copied: Array  # bool[B]: the draft is a copy


def drafter(
    draft, topology: base.Topology, gamma: int = 3, copy: int = 10
) -> base.Drafter:
    """Draft by CopySpec with `gamma` and `copy`, else by `draft` with `topology`."""
    copier = copyspec.drafter(gamma, copy)
    writer = model.drafter(draft, _unless_copied(topology))
    nodes, depth = max(copier.nodes, writer.nodes), max(copier.depth, writer.depth)

    def init(ctx: base.Context) -> base.State:
        inner, none = writer.init(ctx), jnp.zeros(ctx.length.shape, bool)
        return base.State(Row(inner.row, none), inner.shared)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        copies = copier.draft(keys, ctx, base.State())[0]
        copied = copies.kind[:, 1] == base.CANDIDATE
        cache, (grown, _) = state.row.written
        inner = base.State((cache, (grown, copied)), state.shared)
        grown, inner, _ = writer.draft(keys, ctx, inner)
        fused = _either(copied, _wider(copies, nodes), _wider(grown, nodes), depth)
        return fused, base.State(Row(inner.row, copied), inner.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, seen = state.row, outcome
        if outcome.is_round:
            count = outcome.verdict.count
            num_written = jnp.where(row.copied, jnp.minimum(count, 0), count)
            active = outcome.active & ~row.copied
            seen = draft_model.part(outcome, topology, num_written, active)
        inner = writer.observe(ctx, base.State(row.written, state.shared), seen)
        return base.State(replace(row, written=inner.row), inner.shared)

    return base.Drafter(init, draft_tree, observe, nodes, depth, pauses=True)


def _unless_copied(topology: base.Topology) -> base.Topology:
    """Grow `topology` only in rows that do not copy.

    Its row state is followed by `copied`. If all rows copy, the model is not called.
    """

    def init(batch: int) -> base.State:
        inner = topology.init(batch)
        return base.State((inner.row, jnp.zeros((batch,), bool)), inner.shared)

    def inner(state: base.State) -> base.State:
        return base.State(state.row[0], state.shared)

    def outer(changed: base.State, state: base.State) -> base.State:
        return base.State((changed.row, state.row[1]), changed.shared)

    def expand(keys, state: base.State, *args):
        nodes, changed = topology.expand(keys, inner(state), *args)
        return nodes, outer(changed, state)

    def adapt(state: base.State, outcome: base.Outcome):
        return outer(topology.adapt(inner(state), outcome), state)

    def more(state: base.State, level: int) -> Array:
        free = ~state.row[1]
        return free if grows is None else free & grows(inner(state), level)

    def watched(params, state: base.State, *args):
        assert watch is not None
        return outer(watch(params, inner(state), *args), state)

    def pruned(state: base.State, nodes: base.TokenTree):
        assert prune is not None
        return prune(inner(state), nodes)

    grows, watch, prune = topology.more, topology.watch, topology.prune
    return topology._replace(
        init=init,
        expand=expand,
        adapt=adapt,
        more=more,
        watch=watch and watched,
        prune=prune and pruned,
    )


def _wider(nodes: base.TokenTree, size: int) -> base.TokenTree:
    """Pad the tree to `size` nodes, as a chain after its last node."""
    batch, width = nodes.tokens.shape
    more = ((0, 0), (0, size - width))
    index = jnp.arange(width - 1, size - 1, dtype=jnp.int32)
    after = jnp.broadcast_to(index, (batch, size - width))
    laws, slots = nodes.logits, nodes.slots
    return replace(
        nodes,
        tokens=jnp.pad(nodes.tokens, more),
        parents=jnp.concatenate([nodes.parents, after], 1),
        kind=jnp.pad(nodes.kind, more, constant_values=base.PAD),
        logits=None if laws is None else jnp.pad(laws, (*more, (0, 0))),
        slots=None if slots is None else jnp.pad(slots, more, constant_values=-1),
    )


def _either(
    copied: Array, copies: base.TokenTree, grown: base.TokenTree, depth: int
) -> base.TokenTree:
    """Choose the copy in rows that copied, with one-hot laws where laws are needed."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(copied.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    laws = grown.logits
    if laws is not None:
        following = jnp.roll(copies.tokens, -1, 1)[..., None]
        sure = jnp.where(jnp.arange(laws.shape[-1]) == following, 0.0, -jnp.inf)
        laws = pick(sure, laws)
    return replace(
        grown,
        tokens=pick(copies.tokens, grown.tokens),
        parents=pick(copies.parents, grown.parents),
        kind=pick(copies.kind, grown.kind),
        logits=laws,
        depth=depth,
    )
