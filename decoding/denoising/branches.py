"""Several states of a row in one forward: drafts of the schedule, and their check.

As a chain in the loop for drafts: the committed state, the states that the schedule
would reach from it if the model proposed what it did last, and one step more, which is
true. A draft that equals the true state before it is accepted. So the text is that of
the schedule alone, in at most as many forwards.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding.denoising import canvas_policy
from decoding.denoising.schedule import Canvas
from decoding.denoising.transition import Live, Program, Shared, transition


@struct.dataclass
class Last:
    """The laws that the latest true step saw."""

    logits: Array  # float32[B, C, V]
    aux: dict[str, Array]  # of streams, the same
    valid: Array  # bool[B]: there is one


def drafts(
    program: Program, common: Shared, rows: Live, last: Last
) -> tuple[Live, Array]:
    """★ Return the states [K] of a row, its own first, and which of them there are.

    A draft is made inside the block alone: what follows the block's end was not read.
    """
    states, valid = [rows], [~rows.row.done]
    for _ in range(program.schedule.branches - 1):
        before = states[-1]
        inside = ~canvas_policy.beginning(before.row.canvas)
        valid.append(valid[-1] & last.valid & inside)
        drafted = transition(program, common, before, last.logits, last.aux)
        valid[-1] &= ~drafted.row.done
        valid[-1] &= ~canvas_policy.beginning(drafted.row.canvas)
        states.append(drafted)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return stacked, jnp.stack(valid)


def accepted(
    program: Program, states: Live, valid: Array, true: Live
) -> tuple[Live, Array]:
    """★ Accept drafts [K]; return the state behind the last one, and its index.

    `true` are the states after one step of each.
    """
    agrees = program.schedule.agrees
    best = jnp.int32(0)
    logprobs = jax.tree.map(lambda x: x[0], true.row.logprobs)
    for j in range(1, valid.shape[0]):
        drafted = jax.tree.map(lambda x, j=j: x[j], states)
        reached = jax.tree.map(lambda x, best=best: x[best], true)
        if agrees is None:
            same = _equal(drafted, reached)
        else:
            same = agrees(drafted.row.canvas, reached.row.canvas)
        takes = valid[j] & same
        # A draft's log-probabilities are of stale laws; those of its step are true.
        after = jax.tree.map(lambda x, j=j: x[j], true.row)
        fresh = after.canvas.born >= drafted.row.canvas.step
        logprobs = jnp.where(takes & fresh, after.logprobs, logprobs)
        best = jnp.where(takes, j, best)
    end = jax.tree.map(lambda x: x[best], true)
    return end._replace(row=replace(end.row, logprobs=logprobs)), best


def _equal(a: Live, b: Live) -> Array:
    """★ Whether two states are equal, but for the keys and the log-probabilities."""

    def bare(live: Live) -> list:
        canvas = live.row.canvas
        text = jnp.where(canvas.known, canvas.tokens, -1)
        return jax.tree.leaves((replace(canvas, tokens=text), *live[1:]))

    return jnp.stack([(x == y).all() for x, y in zip(bare(a), bare(b))]).all()


def verified(
    program: Program,
    common: Shared,
    before: Live,
    state: Any,
    run: Callable[[Any, Canvas, Array], tuple],
) -> tuple[Any, Live, Last, Any]:
    """Draft, run all states in one forward, and accept.

    Args:
        program: the method.
        common: what the rows share.
        before: the rows [B].
        state: of the loop, with `last`.
        run: maps the state, canvases [B, K] and bool[B, K] to the state, the laws and
            the streams' logits.

    Returns:
        The state with new caches, the rows, their last laws, and the laws.
    """
    make = functools.partial(drafts, program, common)
    states, valid = jax.vmap(make)(before, state.last)
    state, found, aux = run(state, states.row.canvas, valid)
    move = functools.partial(transition, program, common)
    true = jax.vmap(jax.vmap(move))(states, found.logits, aux)
    take = functools.partial(accepted, program)
    after, best = jax.vmap(take)(states, valid, true)
    pick = jax.vmap(lambda x, best: x[best])
    logits, others = jax.tree.map(lambda x: pick(x, best), (found.logits, aux))
    inside = ~jax.vmap(canvas_policy.beginning)(after.row.canvas)
    return state, after, Last(logits, others, inside), found
