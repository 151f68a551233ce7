"""The end of a round: cut its tokens at a text's end, write and count them."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base, tree
from decoding.automata import stop_strings
from decoding.loops import stats


class Verified(NamedTuple):
    """What a round, or the rounds of a pause, did to its whole draft."""

    kind: Array  # int32[B, N]: PAD where a node was not verified
    calls: Array  # int32[B]: model calls of the drafter and the exit
    verdict: base.Verdict  # of a pause: that of one round
    drafts: Array  # int32[B]: committed tokens that are drafts
    rounds: Array  # int32[B]: calls of the target
    turns: Array  # int32[]: rounds of the loop
    tested: Array  # int32[B, N]: PAD where the text did not test a node
    followed: base.Verdict  # the path of the tested nodes that the text took


def cut(program, state, cache, tokens, count):
    """Cut the committed tokens where a row ends, or at the policy's room.

    EOS, a stop token, a stop string and the limit end a row.

    Returns:
        The number of new tokens int32[B], the stop automaton's state, and whether each
        row ends, bool[B]. A row that only the room cuts continues.
    """
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    ends = (tokens[:, :, None] == state.ends[:, None, :]).any(-1)
    stop, reached = state.stop, [state.stop.row]
    if program.stop:
        for i in range(tokens.shape[1]):
            reached.append(stop_strings.advance(stop.shared, reached[-1], tokens[:, i]))
        ends = ends | stop_strings.matched(stop.shared, jnp.stack(reached[1:], 1))
    ends = ends & (index < count[:, None])
    first = jnp.where(ends.any(1), jnp.argmax(ends, 1).astype(jnp.int32) + 1, count)
    limit = state.limit - state.length
    new = jnp.minimum(first, limit)
    if program.policy.room is not None:
        new = jnp.minimum(new, program.policy.room(state.policy, cache, tokens))
    ended = (ends.any(1) & (first <= new)) | (new >= limit)
    if program.stop:
        at = jnp.where(state.done, 0, new)[:, None]
        rows = jnp.take_along_axis(jnp.stack(reached, 1), at, 1)[:, 0]
        stop = base.State(rows, stop.shared)
    return new, stop, ended


def write(state, outcome, tokens, new, drafts):
    """Write tokens, their origin and log-probabilities into the buffers."""
    rows = jnp.arange(tokens.shape[0])[:, None]
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    size = state.tokens.shape[1]
    at = jnp.where(index < new[:, None], state.length[:, None] + index, size + index)
    origin = jnp.where(index < drafts[:, None], index + 1, 0).astype(jnp.int8)
    parents = jnp.pad(outcome.verdict.path, ((0, 0), (1, 0)))  # node before each token
    raw = tree.pick(outcome.target.logits, parents)
    chosen = jnp.take_along_axis(raw, tokens[..., None], 2)[..., 0]
    logprobs = chosen - jax.nn.logsumexp(raw, -1)
    put = {"mode": "drop", "unique_indices": True}
    return replace(
        state,
        tokens=state.tokens.at[rows, at].set(tokens, **put),
        origin=state.origin.at[rows, at].set(origin, **put),
        logprobs=state.logprobs.at[rows, at].set(logprobs, **put),
    )


def count(counters, draft, verified, active, reads=None):
    """Add the counts of a round or of a pause: every call commits a token at least.

    `reads` float32[B]: slots that a node reads; None where that is not counted.
    """
    verdict, drafts, calls = verified.verdict, verified.drafts, verified.rounds
    deep = jnp.arange(counters.offered.shape[1], dtype=jnp.int32)
    level = jnp.where(draft.kind == base.CANDIDATE, tree.depths(draft), 0)
    offered = (level[:, :, None] == deep + 1).any(1) & active[:, None]
    candidates = (draft.kind == base.CANDIDATE).sum(1) - 1
    return stats.Counters(
        counters.target_calls + calls,
        counters.new_tokens + jnp.where(active, verdict.count + calls, 0),
        counters.accepted + (deep < drafts[:, None]),
        counters.offered + offered,
        counters.draft_calls + jnp.where(active, draft.calls, 0),
        counters.candidates + jnp.where(active, candidates, 0),
        counters.ranked + tree.ranks(draft, verdict.path, drafts, stats.RANKS),
        None if reads is None else counters.keys_read + reads * calls,
        counters.layers,
    )
