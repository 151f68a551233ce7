"""The state of a search: planted behind the prompts, and grown."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.hypotheses import pool as pools
from decoding.hypotheses import slots as scratch
from decoding.hypotheses.drafts import Texts
from decoding.hypotheses.nodes import ALL, Mix, Nodes, Select, alone, first
from decoding.hypotheses.nodes import Texts as Asked
from decoding.hypotheses.pool import Pool
from decoding.hypotheses.slots import Slots
from decoding.loops.decode import DecodeState, Program


@struct.dataclass
class SearchState:
    """The carry of the loop: the requests' rows after prefill, and their trees."""

    rows: DecodeState
    nodes: Nodes
    slots: Slots
    lanes: Array  # int32[B, K]: the nodes that run next; -1: none
    mix: Mix | None  # leaves [B, K, J]: the nodes that run as one
    states: base.State  # the transform's, row leaves [B, K, ...]; under ALL [B, M, ...]
    stop: Array  # int32[B, M]: the stop automaton's state at every node
    pool: Pool  # leaves [B, P]
    select: base.State
    reward: base.State
    ask: Asked  # leaves [B, A]: what waits for a reward on the host
    values: Array  # float32[B, A]: of the texts of the round before; NaN: none
    starts: dict[str, Array]  # cache -> int32[B]: position of node 0
    texts: Texts | None  # of the lanes, for a drafter that reads them
    round: Array  # int32[]: calls of the model
    level: Array  # int32[B]: selections
    nodes_run: Array  # int32[B]
    most_slots: Array  # int32[B]


def begin(
    program: Program, own: tuple, rows: DecodeState, new: int, size: int
) -> SearchState:
    """Plant a tree of one node a request.

    Args:
        program: with a `select`.
        own: the state of `select`, of one request (not read where `select` reads),
            and that of the reward.
        rows: after prefill; the caches have `size` slots behind each prompt.
        new: tokens of a text at most.
        size: scratch slots, a multiple of 32.
    """
    select = selects(program)
    batch = rows.length.shape[0]
    at = (rows.length - 1)[:, None]
    root = jnp.take_along_axis(rows.tokens, at, 1)[:, 0]
    capacity = select.capacity(new)
    repeat = lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x)))
    chooser = base.State(jax.tree.map(repeat, own[0].row), own[0].shared)
    drafter = rows.drafter
    if select.read is not None:  # it read the prompt, beside the drafter
        pairs = zip(drafter.row, drafter.shared)
        chooser, drafter = (base.State(*pair) for pair in pairs)
    rows = replace(rows, drafter=base.State())
    each = capacity if select.holds == ALL else select.width
    over_lanes = lambda x: jnp.repeat(x[:, None], each, 1)
    lanes = jnp.full((batch, select.width), -1, jnp.int32).at[:, 0].set(0)
    texts = None
    if program.texts is not None:
        many = lambda x: jnp.repeat(x[:, None], select.width, 1)
        mine = base.State(jax.tree.map(many, drafter.row), drafter.shared)
        texts = Texts(many(rows.tokens), many(rows.length), mine)
    stop = jnp.zeros((batch, capacity), jnp.int32)
    if program.stop:
        stop = stop.at[:, 0].set(rows.stop.row)
    return SearchState(
        rows=rows,
        nodes=first(root, capacity),
        slots=scratch.empty(batch, size),
        lanes=lanes,
        mix=alone(lanes, select.mixes) if select.mixes else None,
        states=base.State(
            jax.tree.map(over_lanes, rows.transform.row), rows.transform.shared
        ),
        stop=stop,
        pool=jax.tree.map(repeat, pools.empty(select.pool)),
        select=chooser,
        reward=own[1],
        ask=nothing(batch, select.asks),
        values=jnp.full((batch, select.asks), jnp.nan),
        starts={name: cache.length for name, cache in rows.caches.items()},
        texts=texts,
        round=jnp.int32(0),
        level=jnp.zeros(batch, jnp.int32),
        nodes_run=jnp.zeros(batch, jnp.int32),
        most_slots=jnp.zeros(batch, jnp.int32),
    )


def nothing(batch: int, asks: int) -> Asked:
    """Ask for no text."""
    # Two arrays: a state's buffers are donated, and none may be there twice.
    return Asked(*(jnp.full((batch, asks), -1, jnp.int32) for _ in range(2)))


def reader(select: Select, drafter: base.Drafter) -> base.Drafter:
    """Make a drafter whose state is that of `select` beside its own.

    So the prompt's chunks reach a search as they reach a drafter.
    """
    read = select.read
    assert read is not None

    def both(a: base.State, b: base.State) -> base.State:
        return base.State((a.row, b.row), (a.shared, b.shared))

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        own = select.init(ctx.params, size)
        repeat = lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x)))
        mine = base.State(jax.tree.map(repeat, own.row), own.shared)
        return both(mine, drafter.init(ctx))

    def observe(
        ctx: base.Context, state: base.State, outcome: base.Outcome
    ) -> base.State:
        mine, other = (base.State(*pair) for pair in zip(state.row, state.shared))
        count = jnp.where(outcome.active, outcome.verdict.count + 1, 0)
        hidden = {tap: outcome.target.hidden[tap] for tap in select.taps}
        mine = tree.over_rows(read, 2)(mine, hidden, count)
        return both(mine, drafter.observe(ctx, other, outcome))

    return drafter._replace(init=init, observe=observe, taps=select.taps)


def memory(state: SearchState, select: Select) -> base.State:
    """Return what outlives the search, in the form of its drafter's state."""
    own = () if state.texts is None else state.texts.own.shared
    return base.State((), own if select.read is None else (state.select.shared, own))


def selects(program: Program) -> Select:
    """Return the program's search."""
    assert program.select is not None
    return program.select


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
