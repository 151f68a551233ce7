"""From the laws of a search's nodes to its new leaves, level by level.

Without drafts a round's block is the lanes' nodes, and serves one level. A draft that a
lane runs next has its law already: if the leaves of all lanes have, the next level
follows on the same call of the model.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, noise, transform_chain, tree, vocab
from decoding.automata import stop_strings
from decoding.hypotheses.drafts import Block, Trail
from decoding.hypotheses.nodes import ALL as ALL_NODES
from decoding.hypotheses.nodes import Nodes, Selection, View
from decoding.loops import asking, drafting
from decoding.loops.decode import Program
from decoding.loops.search_state import SearchState, selects
from kernels import one_buffer


class Laws(NamedTuple):
    """What the models gave at the nodes of a round's block."""

    logits: Any  # float32[B, N, V]: raw
    hidden: dict[Any, Array]  # tap -> [B, N, D]
    aux: dict[str, Array]  # stream -> float32[B, N, V]
    values: Array | None  # float32[B, N]: by the reward's `node`


class _Moved(NamedTuple):
    """Where the lanes of a level come from."""

    lane: Array  # int32[B, K]
    leaf: Array  # bool[B, K]: they run a leaf of it; else its own node again
    token: Array  # int32[B, K]: that leaf's


def levels(
    program: Program, state: SearchState, run: Block, laws: Laws
) -> tuple[SearchState, Trail]:
    """Select as long as the laws of all lanes are among those of the block."""
    lanes = state.lanes.shape[1]
    at = jnp.broadcast_to(jnp.arange(lanes, dtype=jnp.int32), state.lanes.shape)
    trail = drafting.trail(state, run.most)
    caches, rows = state.rows.caches, state.rows
    # The models ran, and their caches stay out of the loop.
    state = replace(state, rows=replace(rows, caches={}))
    carry = (state, at, trail, ~rows.done)
    step = functools.partial(_level, program, run, laws)
    if run.most:
        carry = lax.while_loop(lambda c: c[3].any(), lambda c: step(*c), carry)
    else:
        carry = step(*carry)
    state, _, trail, _ = carry
    return replace(state, rows=replace(state.rows, caches=caches)), trail


def _level(program, run: Block, laws: Laws, state, at, trail, on):
    """Select once in the requests `on` bool[B], whose lanes are `at` these nodes."""
    select, rows = selects(program), state.rows
    pick = (lambda x: tree.pick(x, at)) if run.most else lambda x: x
    logits, hidden, aux = jax.tree.map(pick, (laws.logits, laws.hidden, laws.aux))
    logits = one_buffer.held(logits)
    live = (state.lanes >= 0) & on[:, None]

    logp = vocab.log_softmax(logits)
    received = logp if select.domain == "logprobs" else logits
    over = functools.partial(jax.vmap, in_axes=(base.ROWS, 0, 0))
    before = _of_lanes(program, state)
    # The readers of a law differ with the batch's size, and so would their rounding.
    warped = one_buffer.held(over(over(program.transform.apply))(before, received, aux))
    mass = jnp.zeros(live.shape)
    if select.weighs:
        share = functools.partial(transform_chain.mass, program.transform)
        mass = over(over(share))(before, received, aux)
    chosen, chooser = _chosen(program, state, live, (warped, logp, hidden, aux, mass))
    known = (before, (received, aux), logp)
    after, moved = _hang(program, state, chosen, known, on)
    # Under ALL a search may spend a round on what it knows, and go on.
    stuck = (after.lanes < 0).all(1) & (select.holds != ALL_NODES)
    asked = jnp.zeros(on.shape, bool)
    if (ask := chosen.ask) is not None:
        ask = replace(ask, node=jnp.where(on[:, None], ask.node, -1))
        asked = (ask.node >= 0).any(-1)
        after = asking.ask(program, after, ask, on)
    done = rows.done | (on & (chosen.done | (stuck & ~asked)))
    state = replace(
        after,
        select=tree.masked(on, chooser, state.select),
        pool=_where(on, chosen.pool, state.pool),
        rows=replace(after.rows, done=done),
        level=state.level + on,
    )
    if not run.most:
        return state, at, trail, jnp.zeros_like(on)
    state, at, trail, ready = _on_drafts(run, laws, state, at, trail, moved, on)
    waits = (state.ask.node >= 0).any(-1)
    return state, at, trail, on & ready & ~done & ~waits


def _on_drafts(run: Block, laws: Laws, state, at, trail, moved: _Moved, on):
    """Find the lanes' new nodes among the drafts.

    Returns:
        The state, the lanes' nodes in the block, their trail, and the requests in which
        all lanes have one, bool[B].
    """
    live, lanes = state.lanes >= 0, at.shape[1]
    was = tree.pick(at, moved.lane)
    below = run.there[:, None, lanes:] & (run.parents[:, None] == was[..., None])
    below &= run.tokens[:, None, lanes:] == moved.token[..., None]
    found = below.any(-1) & moved.leaf & live
    now = jnp.where(moved.leaf, lanes + jnp.argmax(below, -1).astype(jnp.int32), was)
    ready = (found | ~moved.leaf | ~live).all(1) & live.any(1)
    capacity = state.nodes.tokens.shape[1]
    node = jnp.where(found & on[:, None], state.lanes, capacity)
    put = jax.vmap(lambda x, at, values: x.at[at].set(values, mode="drop"))
    nodes = state.nodes
    nodes = replace(nodes, slot=put(nodes.slot, node, tree.pick(run.slot, now)))
    if laws.values is not None:
        value = put(nodes.value, node, tree.pick(laws.values, now))
        nodes = replace(nodes, value=value)
    count = run.parents.shape[1] // lanes
    steps = (at, moved.lane, moved.leaf & live, moved.token)
    trail = _where(on, drafting.followed(trail, count, *steps), trail)
    return replace(state, nodes=nodes), _where(on, now, at), trail, ready


def _where(at: Array, a: Any, b: Any) -> Any:
    """Take `a` where `at` bool[B, ...] is, and `b` elsewhere."""

    def one(a: Array, b: Array) -> Array:
        return jnp.where(at.reshape(*at.shape, *[1] * (a.ndim - at.ndim)), a, b)

    return jax.tree.map(one, a, b)


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
    keys = noise.for_role(rows.key, noise.SELECT, state.level)

    def one(key, row, lanes, laws, values, level, nodes, pool, stop, chooser):
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

        about = (nodes, limit - length, sampled, level, pool, stops, drawn)
        view = View(lanes, logits, raw, hidden, aux, mass, values, *about)
        return select.select(key, chooser, view)

    row = (rows.key, rows.length, rows.limit, rows.sampled, rows.ends, rows.stop.shared)
    lanes = jnp.where(live, state.lanes, -1)
    each = (lanes, laws, state.values, state.level, state.nodes, state.pool, state.stop)
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


def _hang(program, state, chosen: Selection, known, on):
    """Hang the new leaves in the requests `on`, and move the lanes along them.

    `known` are the transform's states at the lanes, what it received there, and the
    log-probabilities.
    """
    nodes, rows = state.nodes, state.rows
    before, received, logp = known
    there = chosen.there & on[:, None]
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
        total=put(nodes.total, at, tree.pick(nodes.total, parent) + given),
        value=nodes.value,
        ended=put(nodes.ended, at, over),
        size=nodes.size + there.sum(1, dtype=jnp.int32),
    )
    states = state.states
    if selects(program).holds == ALL_NODES:
        lanes, moved = chosen.run, None
        if program.transform.advance is not None:
            steps = (chosen.parent, chosen.token, received)
            after = _advanced(program, before, *steps)
            every = jax.tree.map(lambda x, new: put(x, at, new), states.row, after)
            states = base.State(every, states.shared)
    else:
        # A lane runs a new leaf, or waits: what another lane just ran, it runs again.
        runs = chosen.run >= 0
        same = there[:, None] & (ids[:, None] == chosen.run[..., None])  # [B, K, F]
        old = state.lanes[:, None] == chosen.run[..., None]  # [B, K, K]
        waits = old.any(-1) & runs
        lanes = jnp.where(same.any(-1) | waits, chosen.run, -1)
        leaf, lane = jnp.argmax(same, -1), jnp.argmax(old, -1)
        parent, token = (tree.pick(x, leaf) for x in (chosen.parent, chosen.token))
        moved = _Moved(jnp.where(waits, lane, parent), ~waits, token)
        if program.transform.advance is not None:
            after = _advanced(program, before, parent, token, received)
            kept = jax.tree.map(lambda x: tree.pick(x, lane), before.row)
            after = _where(waits, kept, after)
            states = base.State(_where(on, after, states.row), states.shared)
    hung = replace(
        state,
        nodes=hung,
        stop=put(state.stop, at, reached),
        states=states,
        lanes=jnp.where(on[:, None], lanes, state.lanes),
        mix=chosen.mix,
    )
    return hung, moved


def _advanced(program, before, lane, token, received):
    """Return the transform's rows after `token` int32[B, F] behind `lane` int32[B, F].

    Args:
        program: with a transform that reads texts.
        before: its states at the lanes' nodes.
        lane: int32[B, F].
        token: int32[B, F].
        received: what `apply` got there: logits [B, K, V], and those of the streams.
    """
    row, inputs = jax.tree.map(lambda x: tree.pick(x, lane), (before.row, received))
    step = tree.over_nodes(program.transform.advance, 3)
    return step(base.State(row, before.shared), token, *inputs).row
