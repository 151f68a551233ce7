"""The denoise loop: forward, propose, choose, commit, in one `lax.while_loop`.

The loop of masked diffusion models. A row is a canvas whose open positions are written
in any order, several a forward. Slots of the cache are positions. Every forward is a
target call and commits a position of every row that is not done, so a row takes at most
as many calls as its canvas has positions.

A step: what the cache policy runs goes through the model, streams beside it
(`denoising/forward.py`); from the laws of the window follow proposal, choice, commit,
stop and the next block (`denoising/transition.py`).
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.denoising import branches
from decoding.denoising.canvas_policy import CanvasPolicy
from decoding.denoising.forward import Laws, forward, plan
from decoding.denoising.schedule import Canvas
from decoding.denoising.transition import (
    Live,
    Program,
    Row,
    Shared,
    first_open,
    foreseen,
    taken,
    transition,
)
from decoding.loops import state_sharding, stats

TARGET = "target"
PARTS = ("transform", "schedule", "stop")  # of the state, components' states


@struct.dataclass
class DenoiseState:
    """The carry of the loop. All leaves but the `shared` ones have a leading `B`."""

    row: Row
    caches: dict[str, Any]  # "target" and the streams
    prompts: dict[str, tuple[Array, Array]]  # of streams: int32[B, P], int32[B]
    transform: base.State
    schedule: base.State
    stop: base.State  # row: int32[B], a state of the automaton of all rows, `shared`
    counters: stats.Counters
    last: branches.Last | None  # of a schedule that verifies several states
    size: int = struct.field(pytree_node=False)  # new tokens of a canvas, rounded up
    span: int = struct.field(pytree_node=False)  # of them, what a constraint reads

    @property
    def window(self) -> int:
        return self.row.canvas.window

    @property
    def tokens(self) -> Array:
        return self.row.canvas.tokens

    @property
    def logprobs(self) -> Array:
        return self.row.logprobs

    @property
    def origin(self) -> Array:
        return jnp.zeros(self.tokens.shape, jnp.int8)

    @property
    def order(self) -> Array:
        """int32[B, T]: the step of each position's commit; -1: given, or open."""
        return self.row.canvas.born

    @property
    def done(self) -> Array:
        return self.row.done

    @property
    def length(self) -> Array:
        """int32[B]: the text's known beginning, prompt included; when done, its end."""
        return jnp.minimum(jax.vmap(first_open)(self.row.canvas), self.row.end)

    @property
    def drafter(self) -> base.State:
        return base.State()

    @property
    def exit(self) -> base.State:
        return base.State()


def live(state: DenoiseState) -> Live:
    """Return the rows, [B, ...]."""
    return Live(state.row, *(getattr(state, name).row for name in PARTS))


def shared(state: DenoiseState) -> Shared:
    """Return what the rows share."""
    parts: dict[str, Any] = {name: getattr(state, name).shared for name in PARTS}
    return Shared(**parts, size=state.span)


def put(state: DenoiseState, rows: Live) -> DenoiseState:
    """Return the state with other rows."""
    parts: dict[str, Any] = {
        name: base.State(getattr(rows, name), getattr(state, name).shared)
        for name in PARTS
    }
    return replace(state, row=rows.row, **parts)


def widths(policy: CanvasPolicy, tokens: int, window: int, size: int) -> list[int]:
    """Return the numbers of nodes to compile programs for, in rising order."""
    found = (*policy.widths(tokens, window, size), tokens)
    return sorted({width for width in found if width <= tokens})


def beside(canvas: Canvas, prompt: Array, length: Array) -> Canvas:
    """★ Return the canvas behind another prompt, int32[P] of `length`."""
    size = prompt.shape[0] + canvas.tokens.shape[0]
    index = jnp.arange(size, dtype=jnp.int32)
    shift = length - canvas.start
    own, back = index < length, index - shift
    back = jnp.where(own, size, back)
    return replace(
        canvas,
        tokens=jnp.where(own, taken(prompt, index, 0), taken(canvas.tokens, back, 0)),
        known=own | taken(canvas.known, back, False),
        born=taken(canvas.born, back, -1),
        start=length,
        lo=canvas.lo + shift,
        hi=canvas.hi + shift,
        limit=canvas.limit + shift,
    )


def laws(
    program: Program,
    params: base.Params,
    state: DenoiseState,
    canvas: Canvas,
    active: Array,
) -> tuple[DenoiseState, Laws, dict[str, Array]]:
    """Run the target and the streams on the states [B, K] that are `active`.

    Returns:
        The state with new caches, the target's laws, and each stream's logits.
    """
    caches, policy = dict(state.caches), program.policy
    about = (state.window, program.shifted)
    sizes = widths(policy, state.tokens.shape[1], state.window, state.size)
    chosen = None
    if policy.foresees:  # of the one state of each row
        known = functools.partial(foreseen, program, shared(state))
        chosen = jax.vmap(known)(live(state))[:, None]
    todo = plan(policy, canvas, active, *about, chosen)
    weights = params["target"]
    caches[TARGET], found = forward(
        program.model, policy, weights, caches[TARGET], todo, sizes
    )
    aux = {}
    whole = policy._replace(run=lambda canvas, wanted: wanted | True)
    for name, stream in program.streams.items():
        of_row = jax.vmap(beside, in_axes=(0, None, None))
        other = jax.vmap(of_row)(canvas, *state.prompts[name])
        todo = plan(whole, other, active, *about)
        weights = base.read(params, stream.params)
        sizes = [other.tokens.shape[2]]
        caches[name], own = forward(
            stream.model, whole, weights, caches[name], todo, sizes
        )
        aux[name] = own.logits
    return replace(state, caches=caches), found, aux


def step(program: Program, params: base.Params, state: DenoiseState) -> DenoiseState:
    """Run one forward for every row that is not done."""
    active, before = ~state.done, live(state)
    common = shared(state)
    run = functools.partial(laws, program, params)
    if program.schedule.branches > 1:
        about = (program, common, before, state, run)
        state, after, last, found = branches.verified(*about)
        state = replace(state, last=masked(active, last, state.last))
    else:
        canvas = jax.tree.map(lambda x: x[:, None], state.row.canvas)
        state, found, aux = run(state, canvas, active[:, None])
        own, beside = jax.tree.map(lambda x: x[:, 0], (found.logits, aux))
        move = functools.partial(transition, program, common)
        after = jax.vmap(move)(before, own, beside)
    state = put(state, masked(active, after, before))
    return counted(state, active, found)


def masked(active: Array, new: Any, old: Any) -> Any:
    """Return `new` in the rows that are active, bool[B], else `old`."""

    def pick(new: Array, old: Array) -> Array:
        return jnp.where(active.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, new, old)


def counted(state: DenoiseState, active: Array, found: Laws) -> DenoiseState:
    """Count a forward, and the tokens of the text so far."""
    canvas, counters = state.row.canvas, state.counters
    index = jnp.arange(canvas.tokens.shape[1], dtype=jnp.int32)
    written = (canvas.born >= 0) & (index < canvas.limit[:, None])
    nodes, wide = counters.nodes, counters.wide
    assert nodes is not None and wide is not None
    counters = replace(
        counters,
        target_calls=counters.target_calls + active,
        new_tokens=written.sum(1, dtype=jnp.int32),
        nodes=nodes + jnp.where(active, found.nodes, 0),
        wide=wide + (active & found.wide),
    )
    return state_sharding.pinned(replace(state, counters=counters))


def round_(
    program: Program, params: base.Params, state: DenoiseState
) -> tuple[DenoiseState, None]:
    """Run one step, for loops on the host."""
    return step(program, params, state), None


def idle(state: DenoiseState) -> DenoiseState:
    """Return the state with no request in any row."""
    row = replace(state.row, done=jnp.ones_like(state.done))
    return replace(state, row=row)


def advance(
    program: Program,
    params: base.Params,
    state: DenoiseState,
    rounds: Array,
    free: Array,
) -> DenoiseState:
    """Run steps on the device until `free` rows are done or `rounds` have passed."""

    def more(carry: tuple) -> Array:
        i, state = carry
        return (i < rounds) & (state.done.sum() < free)

    def body(carry: tuple) -> tuple:
        i, state = carry
        return i + 1, step(program, params, state)

    return lax.while_loop(more, body, (jnp.int32(0), state))[1]
