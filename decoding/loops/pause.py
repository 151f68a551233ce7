"""A pause of the drafter: several rounds of plain decoding, told to it at once."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from decoding.loops import commit

ROUNDS = 16  # at most: the drafter gets their states and logits together


def run(
    drafter: base.Drafter,
    context: Callable[[Any], base.Context],
    step: Callable[[Any, base.TokenTree], tuple],
    state: Any,
    draft: base.TokenTree,
    most: Array,
    free: Array,
    whole: bool,
) -> tuple:
    """Run rounds without drafts.

    Args:
        drafter: is told what it missed.
        context: of a state.
        step: a round on a tree: (state, tree) -> state, outcome, drafts.
        state: of the loop.
        draft: what was drafted, of which the root alone is verified; the text is
            compared with the rest.
        most: int32[], rounds.
        free: int32[]: the rounds end when so many rows are done.
        whole: run one round, and return its outcome on the whole draft.

    Returns:
        The new state, a `commit.Verified`, and the outcome or None.
    """
    root = jnp.zeros(draft.tokens.shape, bool).at[:, 0].set(True)
    nodes, kept = tree.part(draft, root, 1)
    nodes = replace(nodes, calls=jnp.zeros_like(draft.calls))

    def turn(state: Any) -> tuple:
        token = context(state).root[:, None]
        return step(state, replace(nodes, tokens=token))[:2]

    like: base.Outcome = jax.eval_shape(lambda state: turn(state)[1], state)
    calls, outcome = jnp.zeros(like.active.shape, jnp.int32), None
    if whole:
        after, outcome = turn(state)
        turns, seen, calls = jnp.int32(1), outcome.target, outcome.tree.calls
    else:
        turns, after, seen, calls = _turns(turn, state, like.target, most, free, calls)
    rounds = after.length - state.length  # a round without a draft commits one token
    ctx = context(after)
    told = _told(state.length, after, seen, rounds, draft.calls)
    observed = drafter.observe(ctx, state.drafter, told)
    extra = like.verdict.drafted
    none = None if extra is None else jnp.zeros(extra.shape, extra.dtype)
    verdict = base.Verdict(
        jnp.zeros((rounds.shape[0], draft.depth), jnp.int32),
        jnp.minimum(rounds, 1) - 1,
        ctx.root,
        none,
    )
    tested, followed = _followed(draft, state.length, after.tokens, rounds)
    verified = commit.Verified(
        jnp.where(root, draft.kind, base.PAD),
        draft.calls + calls,
        verdict,
        jnp.zeros_like(rounds),
        rounds,
        turns,
        tested,
        replace(followed, drafted=none),
    )
    if outcome is not None and kept is not None:
        outcome = tree.lifted(outcome, draft, kept)
    return replace(after, drafter=observed), verified, outcome


def _followed(draft, length, tokens, rounds):
    """Compare a draft that was not verified with the tokens that were committed.

    Returns:
        The kinds int32[B, N] of the nodes that these rounds reached, PAD for others,
        and the path on which the text followed the draft.
    """
    kind = jnp.where(tree.depths(draft) <= rounds[:, None], draft.kind, base.PAD)
    index = jnp.arange(draft.depth + 1, dtype=jnp.int32)
    text = jnp.take_along_axis(tokens, length[:, None] + index, 1, mode="clip")
    text = jnp.where(index < rounds[:, None], text, -1)
    walk = lambda nodes, text: tree.walk(nodes, lambda node, depth: text[depth])
    return kind, jax.vmap(walk)(replace(draft, kind=kind), text)


def _turns(turn, state, like, most, free, calls):
    """Run at most `most` turns; return their number, the state, and what was seen."""
    rows = calls.shape[0]
    room = lambda x: jnp.zeros((rows, ROUNDS, *x.shape[2:]), x.dtype)

    def more(carry: tuple) -> Array:
        i, state, *_ = carry
        return (i < jnp.minimum(most, ROUNDS)) & (state.done.sum() < free)

    def body(carry: tuple) -> tuple:
        i, state, seen, calls = carry
        state, outcome = turn(state)
        put = lambda x, new: lax.dynamic_update_slice_in_dim(x, new, i, 1)
        seen = jax.tree.map(put, seen, outcome.target)
        return i + 1, state, seen, calls + outcome.tree.calls

    begin = (jnp.int32(0), state, jax.tree.map(room, like), calls)
    return lax.while_loop(more, body, begin)


def _told(length, after, seen, rounds, calls):
    """Return the tokens of a pause as one outcome: a chain that is all accepted."""
    size = jax.tree.leaves(seen)[0].shape[1]
    index = jnp.arange(size, dtype=jnp.int32)
    at = length[:, None] - 1 + index
    tokens = jnp.take_along_axis(after.tokens, at, 1, mode="clip")
    chunk = tree.chain(tokens[:, 0], tokens[:, 1:], rounds - 1, calls=calls)
    path = jnp.broadcast_to(index[1:], (rounds.shape[0], size - 1))
    at = jnp.maximum(after.length - 1, 0)[:, None]
    last = jnp.take_along_axis(after.tokens, at, 1)[:, 0]
    verdict = base.Verdict(path, rounds - 1, last)
    return base.Outcome(chunk, verdict, seen, None, rounds > 0, is_pause=True)
