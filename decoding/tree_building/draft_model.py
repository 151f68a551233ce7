"""Run a draft model beside the target: its cache, and the root of the tree it grows."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from models.base import ALL, causal_block


def catch_up(
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int, lag: int = 2
) -> tuple[Any, Array]:
    """Read committed tokens until the cache lacks the last, or at most the last `lag`.

    For drafters that skip their model in some rounds, or whose drafts are not all their
    model's: the cache may lack any number of tokens. A call reads `size` tokens.

    Returns:
        The cache, and the number of calls int32[].
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
        return (ctx.length - lag > carry[0].length).any()

    return lax.while_loop(behind, body, (cache, jnp.int32(0)))


def root_logits(
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int = 2
) -> tuple[Array, Any]:
    """Return the root's raw logits float32[B, V], and the cache with the root's keys.

    The keys lie in the slot after the cache's committed part, as `grow.grow` requires.
    The cache may lack `size` tokens, the root among them.
    """
    logits, _, cache = root(model, params, cache, ctx, (), size)
    return logits, cache


def taps(topology: base.Topology) -> tuple[str, ...]:
    """Name the draft model's states that the topology watches."""
    return () if topology.watch is None else ("norm",)


def root(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    wanted: tuple[str, ...] = (),
    size: int = 2,
) -> tuple[Array, Any, Any]:
    """Return the root's logits, its `own` (see `grow.sprout`) and the cache.

    As `root_logits`. `wanted` are the `taps` of the topology; without any, `own` is ().
    """
    pending = ctx.length - cache.length
    at = cache.length[:, None] + jnp.arange(size, dtype=jnp.int32)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    block = causal_block(tokens, cache.length, pending, cache.size, logits_at=ALL)
    out, cache = model(params, cache, block, wanted)
    at = (pending - 1)[:, None, None]
    logits = jnp.take_along_axis(out.logits, at, 1, mode="clip")[:, 0]
    states = states_of(out, wanted)
    states = jax.tree.map(lambda x: jnp.take_along_axis(x, at, 1, mode="clip"), states)
    return logits, states, replace(cache, length=ctx.length - 1)


def states_of(out: Any, wanted: tuple[str, ...]) -> Any:
    """Return the watched state of a draft model's nodes, or () without one."""
    return out.hidden[wanted[0]] if wanted else ()


def read_prompt(model: Any, params: Any, cache: Any, outcome: base.Outcome) -> Any:
    """Read a chunk of the prompt into the draft model's cache."""
    verdict = outcome.verdict
    count = verdict.count + 1
    block = causal_block(outcome.tree.tokens, cache.length, count, cache.size)
    _, cache = model(params, cache, block)
    return cache.commit(verdict.path, verdict.count, linear=True)


def part(
    outcome: base.Outcome, topology: base.Topology, count: Array, active: Array
) -> base.Outcome:
    """Cut a round down to the first nodes of its tree, those that `topology` grew.

    Args:
        outcome: the whole round.
        topology: the draft model's.
        count: int32[B], accepted drafts among those nodes; -1 where the draft model did
            not run.
        active: bool[B], rows that may change the topology's state.
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
    """Commit the nodes of the accepted path that the draft model has run to its cache.

    The model has run every node that has children, so at most the path's last node is
    missing; the next round reads it. Node `i` is in slot `tree.slots[i]` past the
    cache's length, -1 if it was not run. Without `slots` it is in slot `i`, and only
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
