"""A lookup before a draft model: row by row, one of the two drafts the round."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.tree_building import draft_model


@struct.dataclass
class Row:
    """The states of both, and whose draft the round verifies."""

    lookup: Any
    written: tuple  # the model drafter's: its cache, and the row of `unless_copied`
    copied: Array  # bool[B]: the draft is the lookup's


@struct.dataclass
class Shared:
    """The shared states of both."""

    lookup: Any
    grown: Any  # the topology's


def drafter(
    lookup: base.Drafter,
    propose: Callable[..., tuple[base.TokenTree, Array, base.State]],
    writer: base.Drafter,
    topology: base.Topology,
) -> base.Drafter:
    """Draft with `lookup` where it has something to copy, else with `writer`.

    Rows choose for themselves; the draft model runs unless all of them copy. It reads
    what was copied when it runs next. A copied chain has one-hot laws.

    Args:
        lookup: a drafter of chains, with its `init` and `observe`.
        propose: `propose(keys, ctx, state) -> chain, copied bool[B], state`, in place
            of the lookup's `draft`.
        writer: `drafters/model` with the topology `unless_copied(topology)`.
        topology: the draft model's.
    """
    nodes, depth = max(lookup.nodes, writer.nodes), max(lookup.depth, writer.depth)

    def init(ctx: base.Context) -> base.State:
        first, inner = lookup.init(ctx), writer.init(ctx)
        none = jnp.zeros(ctx.length.shape, bool)
        row = Row(first.row, inner.row, none)
        return base.State(row, Shared(first.shared, inner.shared))

    def draft(keys, ctx: base.Context, state: base.State):
        row, shared = state.row, state.shared
        first = base.State(row.lookup, shared.lookup)
        copies, copied, first = propose(keys, ctx, first)
        cache, (grown, _) = row.written
        inner = base.State((cache, (grown, copied)), shared.grown)
        grown, inner, _ = writer.draft(keys, ctx, inner)
        fused = either(copied, wider(copies, nodes), wider(grown, nodes), depth)
        row = Row(first.row, inner.row, copied)
        return fused, base.State(row, Shared(first.shared, inner.shared)), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, shared, seen = state.row, state.shared, outcome
        first = lookup.observe(ctx, base.State(row.lookup, shared.lookup), outcome)
        if outcome.is_round:
            count = outcome.verdict.count
            num_written = jnp.where(row.copied, jnp.minimum(count, 0), count)
            active = outcome.active & ~row.copied
            seen = draft_model.part(outcome, topology, num_written, active)
        inner = writer.observe(ctx, base.State(row.written, shared.grown), seen)
        row = replace(row, lookup=first.row, written=inner.row)
        return base.State(row, Shared(first.shared, inner.shared))

    return base.Drafter(init, draft, observe, nodes, depth, pauses=True)


def unless_copied(topology: base.Topology) -> base.Topology:
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


def wider(nodes: base.TokenTree, size: int) -> base.TokenTree:
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


def either(
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
