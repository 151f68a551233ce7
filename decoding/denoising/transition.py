"""One step of one canvas, from the laws of its window: propose, choose, commit, stop.

All functions are ★. The loop maps them over rows; where a forward verifies several
states of a row (`loops/branches.py`), over those too.
"""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, noise, vocab
from decoding.automata import stop_strings
from decoding.block_width.policy import PAPER, WidthPolicy
from decoding.denoising import canvas_policy, filling
from decoding.denoising.canvas_policy import CanvasPolicy
from decoding.denoising.schedule import (
    BLOCK,
    ENTROPY,
    MARGIN,
    PROBS,
    Canvas,
    Proposal,
    Scheduler,
    best,
)
from models.base import LanguageModel


@struct.dataclass
class Row:
    """What the loop keeps of a row beside the components' states."""

    canvas: Canvas
    logprobs: Array  # float32[T]: log-probability under the raw law of its step
    end: Array  # int32[]: the text ends here at the latest; a suffix lies behind
    done: Array  # bool[]
    key: Array  # key[]: the request's key
    sampled: Array  # bool[]: temperature above 0
    ends: Array  # int32[E]: EOS and stop tokens, padded with -1
    read: Array  # int32[]: positions that the stop automaton has read


class Live(NamedTuple):
    """One row with the row parts of its components' states."""

    row: Row
    transform: Any
    schedule: Any
    stop: Any


class Shared(NamedTuple):
    """The parts of the components' states that all rows share."""

    transform: Any
    schedule: Any
    stop: Any
    size: int  # of the longest canvas, at least


@dataclass(frozen=True)
class Program:
    """A composed method of a diffusion model; the compiled functions close over it."""

    model: LanguageModel
    schedule: Scheduler
    transform: base.LogitsTransform
    policy: CanvasPolicy
    shifted: bool  # a position's law is at the position before it
    banned: tuple[int, ...]  # ids that no text has: the mask
    guidance: base.LogitsTransform | None = None
    """The parts of `transform` before the temperature: figures are of the law behind
    them. Their states are the first ones of the chain's."""
    guides: int = 0  # their number
    streams: dict[str, base.Stream] = field(default_factory=dict)
    stop: bool = False  # whether the state carries a stop automaton
    # What `decode.Program` may have, and this has not.
    width: WidthPolicy = PAPER
    widths: tuple[int, ...] = ()
    select: None = None
    rank: None = None
    reward: None = None
    prefill: None = None
    is_canvas = True

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size


def taken(values: Array, index: Array, fill: Any) -> Array:
    """Return `values[index]`; `fill` behind the end."""
    return values.at[index].get(mode="fill", fill_value=fill)


def first_open(canvas: Canvas) -> Array:
    """Return the first open position, int32[]; the limit if there is none."""
    index = jnp.arange(canvas.tokens.shape[0], dtype=jnp.int32)
    return jnp.where(canvas.open, index, canvas.limit).min()


class Laws(NamedTuple):
    """Of the positions lo + arange(C), float32[C, V] each."""

    raw: Array  # log-probabilities under the model's law
    law: Array  # under the law of a proposal's figures
    scores: Array  # what the guesses are the best of


def proposed(
    program: Program, common: Shared, rows: Live, logits: Array, aux: dict
) -> tuple[Proposal, Laws]:
    """Propose tokens for the positions lo + arange(C), from logits float32[C, V].

    Returns:
        The proposal, in which every open position of the window is open, and its laws.
    """
    row, canvas, schedule = rows.row, rows.row.canvas, program.schedule
    index = canvas.lo + jnp.arange(logits.shape[0], dtype=jnp.int32)
    banned = jnp.asarray(program.banned, jnp.int32)
    raw = logits.at[:, banned].set(-jnp.inf)
    state = base.State(rows.transform, common.transform)
    if program.transform.holes is not None:
        about = (canvas, common.size, index)
        aux = aux | filling.words(program.transform.holes, state, *about)
    apply = jax.vmap(lambda logits, aux: program.transform.apply(state, logits, aux))
    # A transform may give the mask a law again, such as a stream's.
    warped = apply(raw, aux).at[:, banned].set(-jnp.inf)
    warped = jax.vmap(filling.masked)(warped, aux)

    def drawn(position: Array) -> Array:
        own = noise.on_canvas(row.key, position, canvas.count, program.vocab)
        return jnp.where(row.sampled, own, 0.0)

    scores = warped + jax.vmap(drawn)(index)
    guess = vocab.argmax(scores)
    raw_law = law = vocab.log_softmax(raw)
    if schedule.warped:
        law = vocab.log_softmax(warped)
    elif program.guidance is not None or filling.WORDS in aux:
        steered = raw
        if program.guidance is not None:
            guide, own = program.guidance, slice(program.guides)
            first = base.State(rows.transform[own], common.transform[own])
            steer = jax.vmap(lambda logits, aux: guide.apply(first, logits, aux))
            steered = steer(raw, aux).at[:, banned].set(-jnp.inf)
        law = vocab.log_softmax(jax.vmap(filling.masked)(steered, aux))
    margin = None
    if MARGIN in schedule.reads:
        two = lax.top_k(jnp.exp(law), 2)[0]
        margin = two[:, 0] - two[:, 1]
    found = Proposal(
        guess,
        vocab.at(law, guess),
        vocab.entropy(law) if ENTROPY in schedule.reads else None,
        margin,
        jnp.exp(law) if PROBS in schedule.reads else None,
        taken(canvas.open, index, False),
    )
    return found, Laws(raw_law, law, scores)


def foreseen(program: Program, common: Shared, rows: Live) -> Array:
    """★ Return which of lo + arange(C) this step commits, bool[C], before its forward.

    It is known inside a block alone, from a schedule that draws its order itself.
    """
    row, canvas = rows.row, rows.row.canvas
    index = canvas.lo + jnp.arange(canvas.window, dtype=jnp.int32)
    is_open = taken(canvas.open, index, False) & (index < canvas.hi)
    state = base.State(rows.schedule, common.schedule)
    assert program.schedule.ahead is not None
    return program.schedule.ahead(key_of(row), state, canvas, is_open) & is_open


def key_of(row: Row) -> Array:
    """★ Make the key of a step's choice."""
    return noise.on_canvas_for(row.key, noise.UNMASK, row.canvas.count)


def planned(
    program: Program, state: base.State, canvas: Canvas, found: Proposal
) -> Canvas:
    """Return the canvas with the end of a block that begins now."""
    window = found.guess.shape[0]
    most = jnp.minimum(canvas.limit, canvas.lo + window)
    if size := program.policy.block:
        most = jnp.minimum(most, (canvas.lo // size + 1) * size)
    plan = canvas.lo + BLOCK
    if program.schedule.plan is not None:
        plan = program.schedule.plan(state, canvas, found)
    hi = jnp.clip(plan, jnp.minimum(canvas.lo + 1, most), most).astype(jnp.int32)
    begins = canvas_policy.beginning(canvas)
    return replace(
        canvas,
        hi=jnp.where(begins, hi, canvas.hi),
        begun=jnp.where(begins, canvas.step, canvas.begun),
    )


def transition(
    program: Program, common: Shared, rows: Live, logits: Array, aux: dict
) -> Live:
    """Return the row after one step, given the laws of its window.

    Args:
        program: the method.
        common: what the rows share.
        rows: one row.
        logits: float32[C, V], raw, of the positions lo + arange(C).
        aux: name of a stream -> the same of that stream.
    """
    schedule, row = program.schedule, rows.row
    found, laws = proposed(program, common, rows, logits, aux)
    window = found.guess.shape[0]
    state = base.State(rows.schedule, common.schedule)
    canvas = planned(program, state, row.canvas, found)
    index = canvas.lo + jnp.arange(window, dtype=jnp.int32)
    found = found._replace(open=found.open & (index < canvas.hi))

    assert schedule.select is not None
    commit = schedule.select(key_of(row), state, canvas, found).commit & found.open
    # A rule may choose none, but every forward commits.
    commit = jnp.where(commit.any(), commit, best(found.logp, found.open, 1))
    if program.transform.holes is not None:
        constraint = base.State(rows.transform, common.transform)
        about = (canvas, common.size, found, commit, laws.scores)
        guess, commit = filling.admitted(program.transform.holes, constraint, *about)
        found = found._replace(guess=guess, logp=vocab.at(laws.law, guess))
    if schedule.observe is not None:
        state = schedule.observe(state, canvas, found, commit)

    size = canvas.tokens.shape[0]
    at = jnp.where(commit, index, size + jnp.arange(window, dtype=jnp.int32))
    how: dict[str, Any] = {"mode": "drop", "unique_indices": True}
    canvas = replace(
        canvas,
        tokens=canvas.tokens.at[at].set(found.guess, **how),
        known=canvas.known.at[at].set(True, **how),
        born=canvas.born.at[at].set(canvas.step, **how),
        count=canvas.count + commit.sum(dtype=jnp.int32),
        step=canvas.step + 1,
    )
    limit, stop, read = ended(program, common, rows, canvas, state, found)
    canvas = replace(canvas, limit=limit, hi=jnp.minimum(canvas.hi, limit))
    # The next block begins at the next open position.
    inside = canvas_policy.between(canvas, canvas.lo, canvas.hi)
    full = ~(canvas.open & inside).any()
    lo = jnp.where(full, first_open(canvas), canvas.lo)
    canvas = replace(canvas, lo=lo, hi=jnp.where(full, lo, canvas.hi))
    moved = replace(
        row,
        canvas=canvas,
        logprobs=row.logprobs.at[at].set(vocab.at(laws.raw, found.guess), **how),
        done=~canvas.open.any(),
        read=read,
    )
    return Live(moved, rows.transform, state.row, stop)


def ended(
    program: Program,
    common: Shared,
    rows: Live,
    canvas: Canvas,
    state: base.State,
    found: Proposal,
) -> tuple[Array, Any, Array]:
    """Find where the text ends, after a commit.

    Behind an end of sequence, or a stop string, that has nothing open before it, no
    token matters. A schedule's `stop` may cut earlier.

    Returns:
        The limit, the stop automaton's state, and the positions that it has read.
    """
    row, limit = rows.row, canvas.limit
    if program.schedule.stop is not None:
        limit = jnp.minimum(limit, program.schedule.stop(state, canvas, found))
        if program.transform.holes is not None:
            constraint = base.State(rows.transform, common.transform)
            about = (canvas, common.size, row.end, limit)
            limit = filling.cut(program.transform.holes, constraint, *about)
    index = jnp.arange(canvas.tokens.shape[0], dtype=jnp.int32)
    known = jnp.minimum(first_open(canvas), jnp.minimum(limit, row.end))
    is_end = (canvas.tokens[:, None] == row.ends).any(1)
    is_end &= (index >= canvas.start) & (index < known)
    limit = jnp.where(is_end.any(), jnp.argmax(is_end) + 1, limit).astype(jnp.int32)
    if not program.stop:
        return limit, rows.stop, row.read
    table = common.stop

    def more(carry: tuple) -> Array:
        stop, read = carry
        return (read < known) & ~stop_strings.matched(table, stop)

    def step(carry: tuple) -> tuple:
        stop, read = carry
        token = taken(canvas.tokens, read, 0)
        return stop_strings.advance(table, stop, token), read + 1

    stop, read = lax.while_loop(more, step, (rows.stop, row.read))
    hit = stop_strings.matched(table, stop)
    return jnp.where(hit, jnp.minimum(limit, read), limit), stop, read
