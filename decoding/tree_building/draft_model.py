"""Run a draft model beside the target: its cache, and the root of the tree it grows."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from models.base import ALL, causal_block


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
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int = 2
) -> tuple[Array, Any]:
    """The raw logits float32[B, V] of the root, whose keys the cache then holds.

    They lie in the slot after the cache's committed part, where `grow.grow` wants them.
    The cache may lack `size` tokens, the root among them.
    """
    logits, _, cache = root(model, params, cache, ctx, (), size)
    return logits, cache


def taps(topology: base.Topology) -> tuple[str, ...]:
    """The states of a draft model that the topology watches."""
    return () if topology.watch is None else ("norm",)


def root(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    wanted: tuple[str, ...] = (),
    size: int = 2,
) -> tuple[Array, Any, Any]:
    """`root_logits`, and between logits and cache the root's `own` (see `grow.sprout`).

    `wanted`: `taps` of the topology; without any `own` is ().
    """
    pending = ctx.length - cache.length
    at = cache.length[:, None] + jnp.arange(size, dtype=jnp.int32)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    block = causal_block(tokens, cache.length, pending, cache.size, logits_at=ALL)
    out, cache = model(params, cache, block, wanted)
    at = (pending - 1)[:, None, None]
    logits = jnp.take_along_axis(out.logits, at, 1, mode="clip")[:, 0]
    own = states_of(out, wanted)
    own = jax.tree.map(lambda x: jnp.take_along_axis(x, at, 1, mode="clip"), own)
    return logits, own, replace(cache, length=ctx.length - 1)


def states_of(out: Any, wanted: tuple[str, ...]) -> Any:
    """What the nodes of a draft model hand on: a watched state, or nothing."""
    return out.hidden[wanted[0]] if wanted else ()


def read_prompt(model: Any, params: Any, cache: Any, outcome: base.Outcome) -> Any:
    """The draft model's cache after a chunk of the prompt."""
    verdict = outcome.verdict
    count = verdict.count + 1
    block = causal_block(outcome.tree.tokens, cache.length, count, cache.size)
    _, cache = model(params, cache, block)
    return cache.commit(verdict.path, verdict.count, linear=True)


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
        replace(
            whole,
            tokens=whole.tokens[:, :nodes],
            parents=whole.parents[:, :nodes],
            kind=whole.kind[:, :nodes],
            logits=None if whole.logits is None else whole.logits[:, :nodes],
            slots=None if whole.slots is None else whole.slots[:, :nodes],
            depth=deep,
            linear=topology.linear,
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


def commit(cache: Any, topology: base.Topology, outcome: base.Outcome) -> Any:
    """The draft model's cache, with what it has seen of the accepted path.

    It has run every node that has children, and so all of the path but its last node
    perhaps: the next round catches up. Node `i` is in slot `tree.slots[i]` past the
    cache's length, -1 if it was not run; without `slots` it is in slot `i`, and only
    the deepest level was not run.
    """
    nodes, verdict = outcome.tree, outcome.verdict
    if nodes.slots is None:
        seen = jnp.minimum(verdict.count, topology.depth - 1)
        return cache.commit(verdict.path, seen, topology.linear)
    path = jnp.take_along_axis(nodes.slots, verdict.path, 1)
    index = jnp.arange(path.shape[1], dtype=jnp.int32)
    seen = ((path >= 0) & (index < verdict.count[:, None])).sum(1)
    seen = jnp.minimum(seen.astype(jnp.int32), verdict.count)  # -1: nothing committed
    seen = jnp.where(nodes.slots[:, 0] < 0, -1, seen)
    return cache.commit(jnp.maximum(path, 0), seen, nodes.linear)
