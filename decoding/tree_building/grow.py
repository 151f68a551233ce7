"""Tree growth, level by level, with a language model or another source of laws."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, tree
from decoding.tree_building import draft_model
from models.base import ALL, Block, Visibility, pack_bits
from models.errors import MethodError

LAWS = (base.IID, base.NO_REPLACE)  # draws whose verifiers need the laws


class Part(NamedTuple):
    """The part of the vocabulary that a draft knows."""

    ids: Array  # int32[M], rising
    spread: Callable[[Array], Array]
    """[..., M] -> float32[..., V], with -inf outside of the part"""


def empty(ctx: base.Context, topology: base.Topology) -> base.TokenTree:
    """Return a tree of the root alone, with room for the topology's nodes."""
    batch, nodes = ctx.tokens.shape[0], sum(topology.widths)
    tokens = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(ctx.root)
    kind = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(base.CANDIDATE)
    parents = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(-1)
    return base.TokenTree(
        tokens,
        parents,
        kind,
        draw=topology.draw,
        depth=topology.depth,
        linear=topology.linear,
    )


def put(
    nodes: base.TokenTree,
    widths: tuple[int, ...],
    level: int,
    tokens: Array,
    local: Array,
    there: Array,
    laws: Array,
) -> base.TokenTree:
    """Write the level below `level` to a tree.

    Args:
        nodes: the tree.
        widths: nodes of each level, the root's 1 first.
        level: depth of the parents.
        tokens: int32[B, w], of the new level.
        local: int32[B, w], the parents' places in `level`.
        there: bool[B, w], whether a node exists.
        laws: float32[B, .., V] of the parents, stored where the draw needs them.
    """
    here = sum(widths[:level])
    below = here + widths[level]
    span = slice(below, below + widths[level + 1])
    kind = jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32)
    nodes = replace(
        nodes,
        tokens=nodes.tokens.at[:, span].set(tokens),
        parents=nodes.parents.at[:, span].set(here + local),
        kind=nodes.kind.at[:, span].set(kind),
    )
    if nodes.logits is None:
        return nodes
    at = slice(here, here + laws.shape[1])
    return replace(nodes, logits=nodes.logits.at[:, at].set(laws))


def grow(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    topology: base.Topology,
    keys: Array,
    state: base.State,
    logits: Array,
    own: Any = (),
) -> tuple[base.TokenTree, base.State, Any]:
    """Grow a tree with one call of `model` for each level but the last.

    Args:
        model: the draft model.
        params: its params.
        cache: its cache, the root's keys in slot `cache.length`.
        ctx: of this round.
        topology: of the tree.
        keys: key[B].
        state: the topology's.
        logits: float32[B, V], the root's, raw.
        own: from `draft_model.root`.

    Returns:
        The tree, the topology's state, and the cache.
    """
    taps = draft_model.taps(topology)

    def call(cache: Any, above: Any, block: Block, level: int) -> tuple:
        out, cache = model(params, cache, block, taps)
        return out.logits, draft_model.states_of(out, taps), cache

    return sprout(call, cache, cache.length, ctx, topology, keys, state, logits, own)


def sprout(
    call: Callable[[Any, Any, Block, int], tuple[Array, Any, Any]],
    cache: Any,
    prefix: Array,
    ctx: base.Context,
    topology: base.Topology,
    keys: Array,
    state: base.State,
    logits: Array,
    own: Any = (),
    part: Part | None = None,
    watched: Callable[[Any], Any] = lambda own: own,
) -> tuple[base.TokenTree, base.State, Any]:
    """Grow a tree level by level with any function that gives the laws of a level.

    The tree's `calls` counts the calls made, and is -1 where the root was not run.

    Args:
        call: `call(cache, above, block, level) -> raw logits, own, cache`, made for the
            `w` nodes of each level but the root's and the last. `own` [B, w, ...] are
            the values that those nodes pass to their children, `above` the values
            passed to them.
        cache: of `call`.
        prefix: int32[B], the block's first slot and the root's; the others follow level
            by level. Node `i` of those that are run is bit `i` of its ancestors.
        ctx: of this round.
        topology: of the tree.
        keys: key[B].
        state: the topology's.
        logits: [B, V], the root's, raw.
        own: [B, 1, ...], the root's.
        part: the tokens of the raw logits, [..., M] then; None: all. The tree grows
            among them alone, unless its draw or the transform needs every token's.
        watched: what a topology watches of `own`.

    Returns:
        The tree, the topology's state, and the cache.
    """
    nodes, run = empty(ctx, topology), topology.run
    call, logits, part = _known(call, logits, part, ctx, topology)
    eye = pack_bits(jnp.eye(sum(run), dtype=bool))
    if topology.draw in LAWS:
        laws = jnp.zeros((*nodes.tokens.shape, logits.shape[-1]), jnp.float32)
        nodes = replace(nodes, logits=laws)
    batch = nodes.tokens.shape[0]
    bits = jnp.broadcast_to(eye[:1], (batch, 1, eye.shape[1]))
    at = base.State(
        jax.tree.map(lambda x: x[:, None], ctx.transform.row), ctx.transform.shared
    )
    raw, start, slot = logits[:, None], 0, 0
    live = jnp.ones((batch,), bool)
    bounded = topology.more is not None or ctx.depth is not None
    ran = [jnp.broadcast_to(grows(topology, state), (batch,))]

    def noise(level: Array) -> Array:
        at = ctx.length + level
        return ctx.noise(at) if part is None else ctx.noise(at, part.ids)

    for level in range(topology.depth):
        end = start + topology.widths[level]
        if topology.more is not None:
            live = live & topology.more(state, level)
        if ctx.depth is not None and level:
            live = live & (level < ctx.depth)
        if level:
            span = slice(start, start + run[level])
            index = jnp.arange(slot, slot + run[level], dtype=jnp.int32)
            positions = (ctx.length + level - 1)[:, None]
            block = Block(
                nodes.tokens[:, span],
                jnp.broadcast_to(positions, (batch, run[level])),
                prefix[:, None] + index,
                Visibility(prefix, bits),
                logits_at=ALL,
            )
            among = live if bounded else None
            raw, own, cache = _call(call, cache, own, block, level, among)
            ran.append(live)
        if topology.watch is not None:
            _check(watched(own))
            state = topology.watch(ctx.params, state, watched(own), level)
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        laws = ctx.warp(raw, at)
        nodes, state = topology.expand(
            fold(keys, level), state, nodes, laws, noise, level
        )
        below = slice(end, end + topology.widths[level + 1])
        if part is not None:
            ids = part.ids[nodes.tokens[:, below]]
            nodes = replace(nodes, tokens=nodes.tokens.at[:, below].set(ids))
        if bounded:
            kind = jnp.where(live[:, None], nodes.kind[:, below], base.PAD)
            nodes = replace(nodes, kind=nodes.kind.at[:, below].set(kind))
        if level + 1 == topology.depth:
            break
        slot += run[level]
        below = slice(end, end + run[level + 1])
        local = nodes.parents[:, below] - start
        seen = eye[slot : slot + run[level + 1]]
        bits = jnp.take_along_axis(bits, local[..., None], 1) | seen
        own = jax.tree.map(lambda x, local=local: tree.pick(x, local), own)
        at = _follow(ctx, at, local, nodes.tokens[:, below], raw)
        start = end
    calls = jnp.stack(ran).sum(0) - 1 if bounded else len(ran) - 1
    nodes = replace(nodes, calls=calls)
    return _finish(topology, nodes, state, ran, bounded), state, cache


def grows(topology: base.Topology, state: base.State) -> Array:
    """Return whether any row drafts this round, bool[]; else the root is not run."""
    if topology.more is None:
        return jnp.bool_(True)
    return topology.more(state, 0).any()


def _known(call, logits, part, ctx, topology) -> tuple:
    """Return `call` and `logits` with the values that the tree grows from, float32.

    And their part of the vocabulary: None, all of it, where verifiers need the laws,
    or the transform the tokens' ids.
    """
    needed = topology.draw in LAWS or not ctx.law.nameless
    spread = part is not None and needed
    values = part.spread if spread else lambda x: x.astype(jnp.float32)

    def known(cache: Any, above: Any, block: Block, level: int) -> tuple:
        raw, own, cache = call(cache, above, block, level)
        return values(raw), own, cache

    return known, values(logits), None if needed else part


def _call(call, cache, above, block, level, live):
    """Call for the laws of a level, unless no row is `live`; None: all are."""
    if live is None:
        return call(cache, above, block, level)
    raw, own, _ = jax.eval_shape(
        lambda cache, above, block: call(cache, above, block, level),
        cache,
        above,
        block,
    )

    def nothing(cache: Any) -> tuple:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (raw, own))
        return (*zeros, cache)

    return lax.cond(
        live.any(), lambda cache: call(cache, above, block, level), nothing, cache
    )


def _check(own: Any) -> None:
    """Refuse `own` that is not one vector a node: a topology watches vectors."""
    if [x.ndim for x in jax.tree.leaves(own)] != [3]:
        raise MethodError(
            "the topology watches the states of the draft, and this drafter has "
            "none: use drafters/model or a head that has states"
        )


def _finish(topology, nodes, state, ran, bounded) -> base.TokenTree:
    """Prune the tree for verification, and note its nodes' slots where they differ."""
    if not bounded and topology.prune is None and not topology.beam:
        return nodes
    slots, slot = [], 0
    for width, run, live in zip(topology.widths, topology.run, (*ran, ran[0])):
        local = np.where(np.arange(width) < run, slot + np.arange(width), -1)
        slots.append(jnp.where(live[:, None], jnp.asarray(local, jnp.int32), -1))
        slot += run
    nodes = replace(nodes, slots=jnp.concatenate(slots, 1))
    if topology.prune is None:
        return nodes
    return tree.select(nodes, topology.prune(state, nodes))


def _follow(ctx, at, local, tokens, raw) -> base.State:
    """Advance the transform's states from one level to the next."""
    above = jax.tree.map(lambda x: tree.pick(x, local), at.row)
    parent = base.State(above, at.shared)
    if ctx.law.advance is None:
        return parent
    before = tree.pick(raw, local)
    return tree.over_nodes(ctx.law.advance, 3)(parent, tokens, before, {})
