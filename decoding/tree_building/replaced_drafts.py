"""An inner drafter whose draft another one replaces in some rows of a round.

It must read texts alone or be able to miss rounds (`Drafter.reads_text`, `pauses`): a
row in which its draft was replaced is one that it missed, as in a pause.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base, tree
from decoding.loops import block_choice


def behind(inner: base.Drafter, ctx: base.Context) -> base.Context:
    """Return a context in which `inner` reads what it missed: one with a depth."""
    if inner.reads_text or ctx.depth is not None:
        return ctx
    return replace(ctx, depth=jnp.int32(inner.depth))


def draft(
    inner: base.Drafter, keys, ctx: base.Context, state: base.State, replaced: Array
) -> tuple[base.TokenTree, base.State, Any]:
    """Draft with `inner`, unless the drafts of all active rows are replaced.

    A drafter that reads texts alone costs little, and always drafts.

    Args:
        inner: the inner drafter.
        keys: of its draft.
        ctx: of the round.
        state: the inner drafter's.
        replaced: bool[B].

    Returns:
        What `inner.draft` returns; where it did not run, trees of the root alone.
    """
    if inner.reads_text:
        return inner.draft(keys, ctx, state)
    ctx = behind(inner, ctx)

    def propose(value: tuple) -> tuple:
        _, state, cache = value
        found = inner.draft(keys, replace(ctx, cache=cache), state)
        return jax.tree.map(jnp.asarray, found)

    like = jax.eval_shape(lambda *rest: propose((None, *rest))[0], state, ctx.cache)
    alone = tree.paused(like, ctx.root)
    wanted = (ctx.active & ~replaced).any()
    return _once(wanted, propose, (alone, state, ctx.cache))


def observe(
    inner: base.Drafter,
    ctx: base.Context,
    state: base.State,
    outcome: base.Outcome,
    replaced: Array,
) -> base.State:
    """Let `inner` observe its own drafts, and elsewhere the tokens that it missed.

    Args:
        inner: the inner drafter.
        ctx: as it observes.
        state: the inner drafter's.
        outcome: the whole outcome; the first nodes of its own trees are the inner
            drafter's.
        replaced: bool[B], rows in which its draft was replaced.
    """
    if inner.reads_text or not outcome.is_round:
        return inner.observe(ctx, state, outcome)
    active, own, others = outcome.active, _cut(outcome, inner), _missed(outcome)
    for seen, rows in ((own, active & ~replaced), (others, active & replaced)):
        seen = _of_rows(seen, rows)
        watch = lambda state, seen=seen: inner.observe(ctx, state, seen)
        state = _once(rows.any(), watch, state)
    return state


def _once(wanted: Array, change: Callable[[Any], Any], value: Any) -> Any:
    """Return `change(value)` where `wanted`, else `value`, in place."""
    choice = jnp.where(wanted, 0, 1)
    return block_choice.one_of(choice, [lambda value: (change(value),)], value)[0]


def _of_rows(outcome: base.Outcome, rows: Array) -> base.Outcome:
    """Return an outcome in which only `rows` bool[B] are active."""
    verdict = outcome.verdict
    verdict = replace(verdict, count=jnp.where(rows, verdict.count, -1))
    return replace(outcome, verdict=verdict, active=rows)


def _cut(outcome: base.Outcome, inner: base.Drafter) -> base.Outcome:
    """Return a round of the inner drafter's own nodes, which come first."""
    size, deep = inner.nodes, inner.depth
    whole, verdict = outcome.tree, outcome.verdict
    cut = lambda x: x[:, :size] if jnp.ndim(x) > 1 else x
    nodes = replace(jax.tree.map(cut, whole), depth=deep)
    verdict = replace(verdict, path=verdict.path[:, :deep])
    target, warped = jax.tree.map(cut, (outcome.target, outcome.warped))
    return replace(outcome, tree=nodes, verdict=verdict, target=target, warped=warped)


def _missed(outcome: base.Outcome) -> base.Outcome:
    """Return a round's tokens as those of a pause: a chain that is all accepted."""
    verdict = outcome.verdict
    values, _ = tree.committed(outcome.tree, verdict)
    rows, deep = verdict.path.shape
    at = jnp.concatenate([jnp.zeros((rows, 1), jnp.int32), verdict.path], 1)
    seen = jax.tree.map(lambda x: tree.pick(x, at), outcome.target)
    root, count = outcome.tree.tokens[:, 0], jnp.maximum(verdict.count, 0)
    chunk = tree.chain(root, values[:, :deep], count, calls=outcome.tree.calls)
    path = jnp.broadcast_to(jnp.arange(1, deep + 1, dtype=jnp.int32), (rows, deep))
    path = jnp.where(jnp.arange(deep) < count[:, None], path, 0)
    told = base.Verdict(path, verdict.count, verdict.token)
    return base.Outcome(chunk, told, seen, None, outcome.active, is_pause=True)
