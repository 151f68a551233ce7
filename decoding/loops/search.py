"""The tree loop: a request's hypotheses are the leaves of one tree in one cache row.

A round runs the leaves of all lanes in one block, and `Select.select` decides which new
leaves hang below them (`leaves`); drafts may run with them (`drafting`). A generated
token's key lies in a scratch slot behind the prompt that its descendants alone can see.
So a prompt is held once, and a reorder of hypotheses moves nothing, in any layout of
the cache.

Slots of dead branches are used again. Every `EVERY` rounds the path that all lanes have
in common is committed, and live slots close up behind it. Where the slots might not
last for as many rounds, `advance` returns, and the host doubles them.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.hypotheses import slots as scratch
from decoding.hypotheses.nodes import ALL as ALL_NODES
from decoding.hypotheses.nodes import Mix, Nodes
from decoding.hypotheses.slots import Slots
from decoding.loops import drafting, host_words, leaves, streams
from decoding.loops.decode import TARGET, Program
from decoding.loops.drafting import DRAFT
from decoding.loops.search_state import SearchState, selects
from models.base import NONE

EVERY = 32  # tokens of a text between settlings
REWARD = "reward"  # the stream of a reward model


def round_(program: Program, params: base.Params, state: SearchState) -> SearchState:
    """Run the lanes of every request that is not done, and select anew."""
    select, rows = selects(program), state.rows
    run, bits, state, trees = drafting.block(program, params, state)
    put = lambda x, at, values: x.at[at].set(values, mode="drop")
    lanes, capacity = state.lanes.shape[1], state.nodes.tokens.shape[1]
    at = jnp.where(run.there[:, :lanes], state.lanes, capacity)
    own = run.slot[:, :lanes]
    nodes = replace(state.nodes, slot=jax.vmap(put)(state.nodes.slot, at, own))
    used = drafting.taken(program, bits, run.seen, run.there).sum(1)

    about = functools.partial(drafting.of_cache, state, run)
    weights = program.weights(params, rows.drafter, rows.exit)
    block = about(TARGET)
    if state.mix is not None:
        nodes = replace(nodes, slot=_shared(state.mix, nodes.slot, own, run.there))
        block = replace(block, embeds=_mixed(program, weights, nodes, state.mix))
    reward = program.reward
    read = () if reward is None or reward.stream is not None else reward.taps
    taps = tuple(dict.fromkeys((*program.taps, *select.taps, *read)))
    caches = state.rows.caches
    out, cache = program.model(weights, caches[TARGET], block, taps)
    others = {n: s for n, s in program.streams.items() if n not in (REWARD, DRAFT)}
    caches, hidden = {**caches, TARGET: cache}, out.hidden
    texts = host_words.of_lanes(program, state, run)
    aux, caches = streams.run(others, params, hidden, caches, about, texts)
    if reward is not None and reward.stream is not None:
        weights = base.read(params, reward.stream.params)
        block = replace(about(REWARD), logits_at=NONE)
        model, cache = reward.stream.model, caches[REWARD]
        beside, caches[REWARD] = model(weights, cache, block, reward.taps)
        hidden = beside.hidden
    value = None
    if reward is not None and reward.node is not None:
        value = reward.node(params, state.reward, hidden)
        nodes = replace(nodes, value=jax.vmap(put)(nodes.value, at, value[:, :lanes]))
    live, over = run.there, ~state.rows.done
    counters = state.rows.counters
    counters = replace(counters, target_calls=counters.target_calls + over)
    state = replace(
        state,
        rows=replace(state.rows, caches=caches, counters=counters),
        nodes=nodes,
        slots=Slots(bits),
        round=state.round + 1,
        nodes_run=state.nodes_run + live.sum(1),
        most_slots=jnp.maximum(state.most_slots, used),
    )
    laws = leaves.Laws(out.logits, out.hidden, aux, value)
    state, trail = leaves.levels(program, state, run, laws)
    if trees is not None:
        state = drafting.told(program, params, state, trees, trail, out.logits)
    return state


def _shared(mix: Mix, known: Array, slot: Array, live: Array) -> Array:
    """Give all nodes of a lane its slot; `known` int32[B, M] are the nodes' slots."""

    def one(node: Array, known: Array, slot: Array, live: Array) -> Array:
        at = jnp.where(live[:, None] & (node >= 0), node, known.shape[0])
        slot = jnp.broadcast_to(slot[:, None], at.shape)
        return known.at[at].set(slot, mode="drop")

    return jax.vmap(one)(mix.node, known, slot, live)


def _mixed(program: Program, weights: Any, nodes: Nodes, mix: Mix) -> Array:
    """Compute the lanes' inputs float32[B, K, D]: sums of rows of the table."""
    token_rows = program.model.token_rows
    assert token_rows is not None
    pick = jax.vmap(lambda tokens, node: tokens[jnp.maximum(node, 0)])
    rows = token_rows(weights, pick(nodes.tokens, mix.node)).astype(jnp.float32)
    # A sum and no product of matrices, which some devices round to bfloat16.
    return (mix.weight[..., None] * rows).sum(-2)


def settle(state: SearchState) -> SearchState:
    """Commit the path that all lanes have in common, and close up the live slots."""
    up, live = drafting.up(state)
    order = jax.vmap(scratch.settling)(state.slots.bits, up, live)
    bits, place = jax.vmap(scratch.reordered)(state.slots.bits, order)
    slot = state.nodes.slot
    moved = jnp.take_along_axis(place, jnp.maximum(slot, 0), 1)
    rows = state.rows
    caches = {
        name: cache.close_up(order.order, order.kept, order.settled)
        for name, cache in rows.caches.items()
    }
    return replace(
        state,
        rows=replace(rows, caches=caches),
        nodes=replace(state.nodes, slot=jnp.where(slot >= 0, moved, -1)),
        slots=Slots(bits),
    )


def every(program: Program, lanes: int) -> int:
    """Return the rounds between settlings, for some `EVERY` tokens of a text."""
    return -(-EVERY // drafting.size(program, lanes)[1])


def lasts(program: Program, state: SearchState) -> Array:
    """Count the rounds, at most `every`, for which the slots last in any case.

    A round needs a slot for every node of its block, and keeps those of the lanes'.
    """
    up, live = drafting.up(state)
    used = drafting.taken(program, state.slots.bits, up, live).sum(1)
    lanes = state.lanes.shape[1]
    nodes, levels = drafting.size(program, lanes)
    left = state.slots.bits.shape[1] - used.max() - nodes
    rounds = jnp.where(left >= 0, left // (lanes * levels) + 1, 0)
    return jnp.minimum(rounds, every(program, lanes))


def advance(
    program: Program, params: base.Params, state: SearchState, least: Array
) -> SearchState:
    """Search until all requests are done, or need slots or a reward on the host.

    Slots run short where they last for fewer than `least` int32[] rounds: `every` where
    the caches can grow, and 1 where they cannot.
    """

    def goes(state: SearchState) -> Array:
        return ~state.rows.done.all() & ~(state.ask.node >= 0).any()

    def rounds(state: SearchState) -> SearchState:
        last = state.round + lasts(program, state)
        more = lambda state: goes(state) & (state.round < last)
        run = functools.partial(round_, program, params)
        state = lax.while_loop(more, run, state)
        return state if selects(program).holds == ALL_NODES else settle(state)

    def more(state: SearchState) -> Array:
        return goes(state) & (lasts(program, state) >= least)

    return lax.while_loop(more, rounds, state)
