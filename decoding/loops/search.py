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
from flax import struct
from jax import Array, lax

from decoding import base, noise, tree, vocab
from decoding.automata import stop_strings
from decoding.hypotheses import pool as pools
from decoding.hypotheses import slots as scratch
from decoding.hypotheses.nodes import Nodes, Select, Selection, View, first
from decoding.hypotheses.pool import Pool
from decoding.hypotheses.slots import Slots
from decoding.loops import streams
from decoding.loops.decode import TARGET, DecodeState, Program
from decoding.method import PLAIN
from models.base import ALL, Block, Visibility

EVERY = 32  # rounds between settlings


@struct.dataclass
class SearchState:
    """The carry of the loop: the requests' rows after prefill, and their trees."""

    rows: DecodeState
    nodes: Nodes
    slots: Slots
    lanes: Array  # int32[B, K]: the nodes that run next; -1: none
    states: base.State  # the transform's, row leaves [B, K, ...]
    stop: Array  # int32[B, M]: the stop automaton's state at every node
    pool: Pool  # leaves [B, P]
    select: base.State
    starts: dict[str, Array]  # cache -> int32[B]: position of node 0
    round: Array  # int32[]
    nodes_run: Array  # int32[B]
    most_slots: Array  # int32[B]


def begin(
    program: Program, own: base.State, rows: DecodeState, new: int, size: int
) -> SearchState:
    """Plant a tree of one node a request.

    Args:
        program: with a `select`.
        own: the state of `select`, of one request; not read where `select` reads.
        rows: after prefill; the caches have `size` slots behind each prompt.
        new: tokens of a text at most.
        size: scratch slots, a multiple of 32.
    """
    select = _select(program)
    batch = rows.length.shape[0]
    at = (rows.length - 1)[:, None]
    root = jnp.take_along_axis(rows.tokens, at, 1)[:, 0]
    capacity = select.capacity(new)
    repeat = lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x)))
    if select.read is not None:
        chooser = rows.drafter  # which read the prompt
        rows = replace(rows, drafter=base.State())
    else:
        chooser = base.State(jax.tree.map(repeat, own.row), own.shared)
    over_lanes = lambda x: jnp.repeat(x[:, None], select.width, 1)
    lanes = jnp.full((batch, select.width), -1, jnp.int32).at[:, 0].set(0)
    stop = jnp.zeros((batch, capacity), jnp.int32)
    if program.stop:
        stop = stop.at[:, 0].set(rows.stop.row)
    return SearchState(
        rows=rows,
        nodes=first(root, capacity),
        slots=scratch.empty(batch, size),
        lanes=lanes,
        states=base.State(
            jax.tree.map(over_lanes, rows.transform.row), rows.transform.shared
        ),
        stop=stop,
        pool=jax.tree.map(repeat, pools.empty(select.pool)),
        select=chooser,
        starts={name: cache.length for name, cache in rows.caches.items()},
        round=jnp.int32(0),
        nodes_run=jnp.zeros(batch, jnp.int32),
        most_slots=jnp.zeros(batch, jnp.int32),
    )


def reader(select: Select) -> base.Drafter:
    """Make plain decoding's drafter, but with the state of `select`, which it reads to.

    So the prompt's chunks reach a search as they reach a drafter.
    """
    read = select.read
    assert read is not None

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        own = select.init(ctx.params, size)
        repeat = lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x)))
        return base.State(jax.tree.map(repeat, own.row), own.shared)

    def observe(
        ctx: base.Context, state: base.State, outcome: base.Outcome
    ) -> base.State:
        count = jnp.where(outcome.active, outcome.verdict.count + 1, 0)
        hidden = {tap: outcome.target.hidden[tap] for tap in select.taps}
        return tree.over_rows(read, 2)(state, hidden, count)

    plain = PLAIN.build({})
    return plain._replace(init=init, observe=observe, taps=select.taps)


def _select(program: Program) -> Select:
    assert program.select is not None
    return program.select


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
    """Make the block of all lanes for one cache."""
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
    select, rows = _select(program), state.rows
    up, live = _up(state)
    slot, seen, bits = jax.vmap(scratch.placed)(state.slots.bits, up, live)
    put = lambda x, at, values: x.at[at].set(values, mode="drop")
    capacity = state.nodes.tokens.shape[1]
    at = jnp.where(live, state.lanes, capacity)
    nodes = replace(state.nodes, slot=jax.vmap(put)(state.nodes.slot, at, slot))
    used = jax.vmap(scratch.held)(seen, live).sum(1)

    about = functools.partial(_block, program, state, slot, seen, live)
    weights = program.weights(params, rows.drafter, rows.exit)
    taps = tuple(dict.fromkeys((*program.taps, *select.taps)))
    out, cache = program.model(weights, rows.caches[TARGET], about(TARGET), taps)
    caches = {**rows.caches, TARGET: cache}
    aux, caches = streams.run(program.streams, params, out.hidden, caches, about)
    rows = replace(rows, caches=caches)

    raw: Any = out.logits
    received = vocab.log_softmax(raw) if select.domain == "logprobs" else raw
    apply = jax.vmap(program.transform.apply, in_axes=(base.ROWS, 0, 0))
    apply = jax.vmap(apply, in_axes=(base.ROWS, 0, 0))
    warped = apply(state.states, received, aux)
    state = replace(state, rows=rows, nodes=nodes, slots=Slots(bits))
    logp = vocab.log_softmax(raw)
    chosen, chooser = _chosen(program, state, live, warped, logp, out.hidden)
    state = _hang(program, state, chosen, logp, received, aux)
    stays = rows.done
    return replace(
        state,
        select=tree.masked(~stays, chooser, state.select),
        pool=_where(stays, state.pool, chosen.pool),
        rows=replace(
            rows,
            done=stays | chosen.done | (state.lanes < 0).all(1),
            counters=replace(
                rows.counters, target_calls=rows.counters.target_calls + ~stays
            ),
        ),
        round=state.round + 1,
        nodes_run=state.nodes_run + live.sum(1),
        most_slots=jnp.maximum(state.most_slots, used),
    )


def _where(rows: Array, a: Any, b: Any) -> Any:
    """Take `a` in `rows` bool[B] and `b` elsewhere."""
    one = lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b)
    return jax.tree.map(one, a, b)


def _chosen(program, state, live, warped, raw, hidden):
    """Run `select` in every row; return the selections and the new states."""
    select, rows = _select(program), state.rows
    keys = noise.for_role(
        rows.key, noise.SELECT, jnp.broadcast_to(state.round, rows.length.shape)
    )

    def one(key, row, lanes, logits, raw, hidden, nodes, pool, stop, chooser):
        limit, ends, automaton = row

        def stops(lane: Array, token: Array) -> Array:
            before = stop[jnp.maximum(lanes[lane], 0)]
            return _ending(program, ends, automaton, before, token)[0]

        about = (logits, raw, hidden, nodes, limit, state.round, pool, stops)
        return select.select(key, chooser, View(lanes, *about))

    row = (rows.limit - rows.length, rows.ends, rows.stop.shared)
    lanes = jnp.where(live, state.lanes, -1)
    each = (lanes, warped, raw, hidden, state.nodes, state.pool, state.stop)
    over = (0, (0, 0, None), *[0] * len(each), base.ROWS)
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


def _hang(program, state, chosen: Selection, logp, received, aux):
    """Hang the new leaves, and move the lanes' states along them."""
    nodes, rows = state.nodes, state.rows
    there = chosen.there & ~rows.done[:, None]
    capacity = nodes.tokens.shape[1]
    ids = nodes.size[:, None] + jnp.cumsum(there, 1) - 1
    at = jnp.where(there, ids, capacity)
    lane_node = jnp.maximum(state.lanes, 0)
    parent = jnp.take_along_axis(lane_node, chosen.parent, 1)
    depth = jnp.take_along_axis(nodes.depth, parent, 1) + 1
    pick = jax.vmap(lambda logp, lane, token: logp[lane, token])
    given = pick(logp, chosen.parent, chosen.token)
    before = jnp.take_along_axis(state.stop, parent, 1)
    ends, stop = rows.ends[:, None], rows.stop.shared
    over, reached = _ending(program, ends, stop, before, chosen.token)
    over |= depth >= (rows.limit - rows.length)[:, None]
    put = jax.vmap(lambda x, at, values: x.at[at].set(values, mode="drop"))
    hung = Nodes(
        tokens=put(nodes.tokens, at, chosen.token),
        parents=put(nodes.parents, at, parent),
        depth=put(nodes.depth, at, depth),
        slot=nodes.slot,
        given=put(nodes.given, at, given),
        ended=put(nodes.ended, at, over),
        size=nodes.size + there.sum(1, dtype=jnp.int32),
    )
    # The leaf of each lane: a lane that runs nothing keeps what it had.
    same = there[:, None] & (ids[:, None] == chosen.run[..., None])  # [B, K, F]
    leaf = jnp.argmax(same, -1)
    runs = same.any(-1)
    states = state.states
    if program.transform.advance is not None:
        lane = jnp.take_along_axis(chosen.parent, leaf, 1)
        token = jnp.take_along_axis(chosen.token, leaf, 1)
        row = jax.tree.map(lambda x: tree.pick(x, lane), states.row)
        inputs = jax.tree.map(lambda x: tree.pick(x, lane), (received, aux))
        step = tree.over_nodes(program.transform.advance, 3)
        states = step(base.State(row, states.shared), token, *inputs)
    return replace(
        state,
        nodes=hung,
        stop=put(state.stop, at, reached),
        states=states,
        lanes=jnp.where(runs, chosen.run, -1),
    )


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


def lasts(state: SearchState) -> Array:
    """Count the rounds, at most `EVERY`, for which the slots last in any case."""
    up, live = _up(state)
    used = jax.vmap(scratch.held)(up, live).sum(1)
    size, width = state.slots.bits.shape[1], state.lanes.shape[1]
    return jnp.minimum((size - used.max()) // width, EVERY)


def advance(
    program: Program, params: base.Params, state: SearchState, least: Array
) -> SearchState:
    """Search until all requests are done, or slots last for fewer than `least` rounds.

    `least` int32[] is `EVERY` where the caches can grow, and 1 where they cannot.
    """

    def rounds(state: SearchState) -> SearchState:
        last = state.round + lasts(state)

        def more(state: SearchState) -> Array:
            return ~state.rows.done.all() & (state.round < last)

        run = functools.partial(round_, program, params)
        return settle(lax.while_loop(more, run, state))

    def more(state: SearchState) -> Array:
        return ~state.rows.done.all() & (lasts(state) >= least)

    return lax.while_loop(more, rounds, state)


def grown(state: SearchState, size: int) -> SearchState:
    """Give every request `size` scratch slots, more than it has."""
    bits = state.slots.bits
    more = size - bits.shape[1]
    words = size // 32 - bits.shape[2]
    rows = state.rows
    caches = {name: cache.grown(more) for name, cache in rows.caches.items()}
    return replace(
        state,
        rows=replace(rows, caches=caches),
        slots=Slots(jnp.pad(bits, ((0, 0), (0, more), (0, words)))),
    )
