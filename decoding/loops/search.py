"""The tree loop: a request's hypotheses are the leaves of one tree in one cache row.

A round runs the leaves of all lanes in one block, and `Select.select` decides which new
leaves hang below them. A generated token's key lies in a scratch slot behind the prompt
that its descendants alone can see. So a prompt is held once, and a reorder of
hypotheses moves nothing, in any layout of the cache.

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

from decoding import base, noise, transform_chain, tree, vocab
from decoding.automata import stop_strings
from decoding.hypotheses import slots as scratch
from decoding.hypotheses.nodes import ALL as ALL_NODES
from decoding.hypotheses.nodes import Mix, Nodes, Selection, View
from decoding.hypotheses.slots import Slots
from decoding.loops import asking, streams
from decoding.loops.decode import TARGET, Program
from decoding.loops.search_state import SearchState, selects
from kernels import one_buffer
from models.base import ALL, NONE, Block, Visibility

EVERY = 32  # rounds between settlings
REWARD = "reward"  # the stream of a reward model


def _up(state: SearchState) -> tuple[Array, Array]:
    """Return the ancestors' bits of the lanes' nodes uint32[B, K, W], and who lives."""
    live = (state.lanes >= 0) & ~state.rows.done[:, None]
    nodes = state.nodes

    def one(lanes: Array, parents: Array, slot: Array, bits: Array) -> Array:
        parent = parents[jnp.maximum(lanes, 0)]
        return scratch.above(bits, jnp.where(parent >= 0, slot[parent], -1))

    up = jax.vmap(one)(state.lanes, nodes.parents, nodes.slot, state.slots.bits)
    return up, live


def _block(program, state, slot, seen, live, name):
    """Make the block of all lanes for one cache, but for `embeds`."""
    rows, nodes = state.rows, state.nodes
    cache = rows.caches[name]
    lanes = jnp.maximum(state.lanes, 0)
    tokens = jnp.take_along_axis(nodes.tokens, lanes, 1)
    if name != TARGET:
        tokens = jnp.where(lanes == 0, rows.roots[name][:, None], tokens)
    depth = jnp.take_along_axis(nodes.depth, lanes, 1)
    index = jnp.arange(lanes.shape[1], dtype=jnp.int32)
    at = jnp.where(live, cache.length[:, None] + slot, cache.size + index)
    return Block(
        tokens,
        state.starts[name][:, None] + depth,
        at,
        Visibility(cache.length, seen),
        logits_at=ALL,
    )


def round_(program: Program, params: base.Params, state: SearchState) -> SearchState:
    """Run the lanes of every request that is not done, and select anew."""
    select, rows = selects(program), state.rows
    up, live = _up(state)
    taken = _taken(program, state.slots.bits, up, live)
    slot, seen, bits = jax.vmap(scratch.placed)(state.slots.bits, up, live, taken)
    put = lambda x, at, values: x.at[at].set(values, mode="drop")
    capacity = state.nodes.tokens.shape[1]
    at = jnp.where(live, state.lanes, capacity)
    nodes = replace(state.nodes, slot=jax.vmap(put)(state.nodes.slot, at, slot))
    used = _taken(program, bits, seen, live).sum(1)

    about = functools.partial(_block, program, state, slot, seen, live)
    weights = program.weights(params, rows.drafter, rows.exit)
    block = about(TARGET)
    if state.mix is not None:
        nodes = replace(nodes, slot=_shared(state.mix, nodes.slot, slot, live))
        block = replace(block, embeds=_mixed(program, weights, nodes, state.mix))
    reward = program.reward
    read = () if reward is None or reward.stream is not None else reward.taps
    taps = tuple(dict.fromkeys((*program.taps, *select.taps, *read)))
    out, cache = program.model(weights, rows.caches[TARGET], block, taps)
    others = {n: s for n, s in program.streams.items() if n != REWARD}
    caches, hidden = {**rows.caches, TARGET: cache}, out.hidden
    aux, caches = streams.run(others, params, hidden, caches, about)
    if reward is not None and reward.stream is not None:
        weights = base.read(params, reward.stream.params)
        block = replace(about(REWARD), logits_at=NONE)
        model, cache = reward.stream.model, caches[REWARD]
        beside, caches[REWARD] = model(weights, cache, block, reward.taps)
        hidden = beside.hidden
    rows = replace(rows, caches=caches)
    if reward is not None and reward.node is not None:
        value = reward.node(params, state.reward, hidden)
        nodes = replace(nodes, value=jax.vmap(put)(nodes.value, at, value))

    assert out.logits is not None
    raw = one_buffer.held(out.logits)
    received = vocab.log_softmax(raw) if select.domain == "logprobs" else raw
    over = functools.partial(jax.vmap, in_axes=(base.ROWS, 0, 0))
    before = _of_lanes(program, state)
    # The readers of a law differ with the batch's size, and so would their rounding.
    warped = one_buffer.held(over(over(program.transform.apply))(before, received, aux))
    mass = jnp.zeros(live.shape)
    if select.weighs:
        share = functools.partial(transform_chain.mass, program.transform)
        mass = over(over(share))(before, received, aux)
    state = replace(state, rows=rows, nodes=nodes, slots=Slots(bits))
    logp = vocab.log_softmax(raw)
    laws = (warped, logp, out.hidden, aux, mass)
    chosen, chooser = _chosen(program, state, live, laws)
    state = _hang(program, state, chosen, logp, before, (received, aux))
    stays = rows.done
    ask, asked = chosen.ask, jnp.zeros(stays.shape, bool)
    # Under ALL a search may spend a round on what it knows, and go on.
    stuck = (state.lanes < 0).all(1) & (select.holds != ALL_NODES)
    if ask is not None:
        ask = replace(ask, node=jnp.where(stays[:, None], -1, ask.node))
        asked = (ask.node >= 0).any(-1)
        state = asking.ask(program, state, ask)
    return replace(
        state,
        select=tree.masked(~stays, chooser, state.select),
        pool=_where(stays, state.pool, chosen.pool),
        rows=replace(
            rows,
            done=stays | chosen.done | (stuck & ~asked),
            counters=replace(
                rows.counters, target_calls=rows.counters.target_calls + ~stays
            ),
        ),
        round=state.round + 1,
        nodes_run=state.nodes_run + live.sum(1),
        most_slots=jnp.maximum(state.most_slots, used),
    )


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


def _where(at: Array, a: Any, b: Any) -> Any:
    """Take `a` where `at` bool[B, ...] is, and `b` elsewhere."""

    def one(a: Array, b: Array) -> Array:
        return jnp.where(at.reshape(*at.shape, *[1] * (a.ndim - at.ndim)), a, b)

    return jax.tree.map(one, a, b)


def _taken(program, bits, up, live):
    """Return the slots that are not free, bool[B, S], by `bits` or the lanes' `up`."""
    if selects(program).holds == ALL_NODES:
        return scratch.written(bits)
    return jax.vmap(scratch.held)(up, live)


def _of_lanes(program, state):
    """Return the transform's states of the lanes' nodes, row leaves [B, K, ...]."""
    if selects(program).holds != ALL_NODES:
        return state.states
    lanes = jnp.maximum(state.lanes, 0)
    row = jax.tree.map(lambda x: tree.pick(x, lanes), state.states.row)
    return base.State(row, state.states.shared)


def _chosen(program, state, live, laws):
    """Run `select` in every row; return the selections and the new states."""
    select, rows = selects(program), state.rows
    keys = noise.for_role(
        rows.key, noise.SELECT, jnp.broadcast_to(state.round, rows.length.shape)
    )

    def one(key, row, lanes, laws, values, nodes, pool, stop, chooser):
        request, length, limit, sampled, ends, automaton = row
        logits, raw, hidden, aux, mass = laws

        def stops(node: Array, token: Array) -> Array:
            before = stop[jnp.maximum(node, 0)]
            return _ending(program, ends, automaton, before, token)[0]

        def drawn(stream: Array) -> Array:
            position = length + nodes.depth[jnp.maximum(lanes, 0)]
            at = functools.partial(noise.at_position, size=program.vocab)
            drawn = jax.vmap(at)(noise.samples(request, stream), position)
            return jnp.where(sampled, drawn, 0.0)

        about = (nodes, limit - length, sampled, state.round, pool, stops, drawn)
        view = View(lanes, logits, raw, hidden, aux, mass, values, *about)
        return select.select(key, chooser, view)

    row = (rows.key, rows.length, rows.limit, rows.sampled, rows.ends, rows.stop.shared)
    lanes = jnp.where(live, state.lanes, -1)
    each = (lanes, laws, state.values, state.nodes, state.pool, state.stop)
    over = (0, (0, 0, 0, 0, 0, None), *[0] * len(each), base.ROWS)
    return jax.vmap(one, in_axes=over, out_axes=(0, base.ROWS))(
        keys, row, *each, state.select
    )


def _ending(program, ends, automaton, state, token):
    """Tell whether tokens end a text by EOS or a stop, bool[...].

    Args:
        program: says whether there are stop strings.
        ends: int32[..., E], EOS and stop tokens.
        automaton: of all stop strings.
        state: int32[...], its state before each token.
        token: int32[...].

    Returns:
        That, and the automaton's state after each token.
    """
    over = (token[..., None] == ends).any(-1)
    if not program.stop:
        return over, state
    reached = stop_strings.advance(automaton, state, token)
    return over | stop_strings.matched(automaton, reached), reached


def _hang(program, state, chosen: Selection, logp, before, received):
    """Hang the new leaves, and move the lanes' states `before` along them."""
    nodes, rows = state.nodes, state.rows
    there = chosen.there & ~rows.done[:, None]
    capacity = nodes.tokens.shape[1]
    ids = nodes.size[:, None] + jnp.cumsum(there, 1) - 1
    at = jnp.where(there, ids, capacity)
    lane_node = jnp.maximum(state.lanes, 0)
    parent = jnp.take_along_axis(lane_node, chosen.parent, 1)
    if chosen.below is not None:
        parent = jnp.maximum(chosen.below, 0)
    depth = jnp.take_along_axis(nodes.depth, parent, 1) + 1
    pick = jax.vmap(lambda logp, lane, token: logp[lane, token])
    given = pick(logp, chosen.parent, chosen.token)
    read = jnp.take_along_axis(state.stop, parent, 1)
    ends, stop = rows.ends[:, None], rows.stop.shared
    over, reached = _ending(program, ends, stop, read, chosen.token)
    over |= depth >= (rows.limit - rows.length)[:, None]
    put = jax.vmap(lambda x, at, values: x.at[at].set(values, mode="drop"))
    hung = Nodes(
        tokens=put(nodes.tokens, at, chosen.token),
        parents=put(nodes.parents, at, parent),
        depth=put(nodes.depth, at, depth),
        slot=nodes.slot,
        given=put(nodes.given, at, given),
        value=nodes.value,
        ended=put(nodes.ended, at, over),
        size=nodes.size + there.sum(1, dtype=jnp.int32),
    )
    states, runs = state.states, chosen.run >= 0
    advance = program.transform.advance
    if selects(program).holds == ALL_NODES:
        if advance is not None:
            after = _advanced(advance, before, chosen.parent, chosen.token, received)
            every = jax.tree.map(lambda x, new: put(x, at, new), states.row, after)
            states = base.State(every, states.shared)
    else:
        # A lane runs a new leaf, or waits: what another lane just ran, it runs again.
        same = there[:, None] & (ids[:, None] == chosen.run[..., None])  # [B, K, F]
        old = state.lanes[:, None] == chosen.run[..., None]  # [B, K, K]
        waits = old.any(-1) & runs
        runs = same.any(-1) | waits
        if advance is not None:
            leaf, lane = jnp.argmax(same, -1), jnp.argmax(old, -1)
            of_leaf = jax.vmap(lambda x, i: x[i])
            moved = (of_leaf(chosen.parent, leaf), of_leaf(chosen.token, leaf))
            after = _advanced(advance, before, *moved, received)
            kept = jax.tree.map(lambda x: tree.pick(x, lane), before.row)
            states = base.State(_where(waits, kept, after), states.shared)
    return replace(
        state,
        nodes=hung,
        stop=put(state.stop, at, reached),
        states=states,
        lanes=jnp.where(runs, chosen.run, -1),
        mix=chosen.mix,
    )


def _advanced(advance, before, lane, token, received):
    """Return the transform's rows after `token` int32[B, F] behind `lane` int32[B, F].

    Args:
        advance: the transform's.
        before: its states at the lanes' nodes.
        lane: int32[B, F].
        token: int32[B, F].
        received: what `apply` got there: logits [B, K, V], and those of the streams.
    """
    row, inputs = jax.tree.map(lambda x: tree.pick(x, lane), (before.row, received))
    step = tree.over_nodes(advance, 3)
    return step(base.State(row, before.shared), token, *inputs).row


def settle(state: SearchState) -> SearchState:
    """Commit the path that all lanes have in common, and close up the live slots."""
    up, live = _up(state)
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


def lasts(program: Program, state: SearchState) -> Array:
    """Count the rounds, at most `EVERY`, for which the slots last in any case."""
    up, live = _up(state)
    used = _taken(program, state.slots.bits, up, live).sum(1)
    size, width = state.slots.bits.shape[1], state.lanes.shape[1]
    return jnp.minimum((size - used.max()) // width, EVERY)


def advance(
    program: Program, params: base.Params, state: SearchState, least: Array
) -> SearchState:
    """Search until all requests are done, or need slots or a reward on the host.

    Slots run short where they last for fewer than `least` int32[] rounds: `EVERY` where
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
