"""Growing a tree with a language model: what the model-based drafters share."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from models.base import ALL, Block, Visibility, causal_block, pack_bits


def empty(ctx: base.Context, topology: base.Topology) -> base.TokenTree:
    """The root, and room for the topology's nodes."""
    batch, nodes = ctx.tokens.shape[0], topology.nodes
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


def catch_up(
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int
) -> tuple[Any, Array]:
    """The cache with all committed tokens but the last, or the last two; and the calls.

    For drafters that do not ask their model every round, or whose drafts are not all
    their model's: it may be any number of tokens behind. `size` tokens are read a call.
    """
    none = jnp.zeros((ctx.length.shape[0], 0), jnp.int32)

    def body(carry: tuple) -> tuple:
        cache, calls = carry
        count = jnp.clip(ctx.length - 1 - cache.length, 0, size)
        at = cache.length[:, None] + jnp.arange(size, dtype=jnp.int32)
        tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
        block = causal_block(tokens, cache.length, count, cache.size)
        _, cache = model(params, cache, block)
        return cache.commit(none, count - 1, linear=True), calls + 1

    def behind(carry: tuple) -> Array:
        return (ctx.length - 2 > carry[0].length).any()

    return lax.while_loop(behind, body, (cache, jnp.int32(0)))


def root_logits(
    model: Any, params: Any, cache: Any, ctx: base.Context
) -> tuple[Array, Any]:
    """The raw logits float32[B, V] of the root, whose keys the cache then holds.

    They lie in the slot after the cache's committed part, where `grow` wants them. The
    cache may lack one token more than the root.
    """
    pending = ctx.length - cache.length
    at = cache.length[:, None] + jnp.arange(2, dtype=jnp.int32)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    block = causal_block(tokens, cache.length, pending, cache.size, logits_at=ALL)
    out, cache = model(params, cache, block)
    root = (pending - 1)[:, None, None]
    logits = jnp.take_along_axis(out.logits, root, 1, mode="clip")[:, 0]
    return logits, replace(cache, length=ctx.length - 1)


def part(
    outcome: base.Outcome, topology: base.Topology, count: Array, active: Array
) -> base.Outcome:
    """A round as the model sees it that grew only the first nodes of its tree.

    `count` int32[B] accepted drafts lie in that part; -1 where its model did not run.
    `active` bool[B]: rows from which the topology may learn.
    """
    nodes, deep = topology.nodes, topology.depth
    whole, verdict = outcome.tree, outcome.verdict
    index = jnp.arange(deep, dtype=jnp.int32)
    tokens = tree.committed(whole, verdict)[0]
    following = jnp.take_along_axis(tokens, jnp.maximum(count, 0)[:, None], 1)[:, 0]
    assert outcome.target.logits is not None and outcome.warped is not None
    return base.Outcome(
        base.TokenTree(
            whole.tokens[:, :nodes],
            whole.parents[:, :nodes],
            whole.kind[:, :nodes],
            None if whole.logits is None else whole.logits[:, :nodes],
            whole.calls,
            whole.draw,
            deep,
            topology.linear,
        ),
        base.Verdict(
            jnp.where(index < count[:, None], verdict.path[:, :deep], 0),
            count,
            following,
        ),
        replace(outcome.target, logits=outcome.target.logits[:, :nodes]),
        outcome.warped[:, :nodes],
        active,
    )


def grow(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    topology: base.Topology,
    keys: Array,
    state: base.State,
    logits: Array,
) -> tuple[base.TokenTree, base.State, Any]:
    """Expand level by level; one call of `model` a level, the last level's excepted.

    `cache` is the model's, the root's keys in slot `cache.length`; `logits`
    float32[B, V] are the root's, raw. Node `i` is written to slot `cache.length + i`.
    """
    nodes, prefix = empty(ctx, topology), cache.length
    eye = pack_bits(jnp.eye(topology.nodes, dtype=bool))
    if topology.draw in (base.IID, base.NO_REPLACE):
        laws = jnp.zeros((*nodes.tokens.shape, logits.shape[-1]), jnp.float32)
        nodes = replace(nodes, logits=laws)
    batch = nodes.tokens.shape[0]
    bits = jnp.broadcast_to(eye[:1], (batch, 1, eye.shape[1]))
    at = base.State(
        jax.tree.map(lambda x: x[:, None], ctx.transform.row), ctx.transform.shared
    )
    raw, start = logits[:, None], 0

    def noise(level: Array) -> Array:
        return ctx.noise(ctx.length + level)

    for level in range(topology.depth):
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        laws = ctx.warp(raw, at)
        nodes, state = topology.expand(
            fold(keys, level), state, nodes, laws, noise, level
        )
        if level + 1 == topology.depth:
            break
        end = start + topology.widths[level]
        span = slice(end, end + topology.widths[level + 1])
        local = nodes.parents[:, span] - start
        bits = jnp.take_along_axis(bits, local[..., None], 1) | eye[span]
        at = _follow(ctx, at, local, nodes.tokens[:, span], raw)
        width = topology.widths[level + 1]
        index = jnp.arange(end, end + width, dtype=jnp.int32)
        positions = jnp.broadcast_to((ctx.length + level)[:, None], (batch, width))
        block = Block(
            nodes.tokens[:, span],
            positions,
            prefix[:, None] + index,
            Visibility(prefix, bits),
            logits_at=ALL,
        )
        out, cache = model(params, cache, block)
        raw, start = out.logits, end
    return nodes, state, cache


def _follow(ctx, at, local, tokens, raw) -> base.State:
    """The transform's states at the next level, from those of this one."""
    rows = jnp.arange(tokens.shape[0])[:, None]
    parent = base.State(jax.tree.map(lambda x: x[rows, local], at.row), at.shared)
    if ctx.law.advance is None:
        return parent
    return tree.over_nodes(ctx.law.advance, 2)(parent, tokens, raw[rows, local])
