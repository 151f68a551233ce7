"""A constraint on a canvas: what a step may propose, and which choices it admits.

A canvas that can be filled stays so. Before the first forward `check` holds every row
to it. In a step each proposal is drawn from the tokens that keep the canvas possible,
one position at a time. Together two of them may not be, so chosen tokens are admitted
one by one in falling confidence, each where the canvas with those before it stays
possible. The first always does; the others that do not stay open.

Where the host answers (`Holes.first`), proposals are not masked. A chosen position
takes the best token that may stand there: the first one of all of them, another one of
`REDRAWS` besides its guess.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, vocab
from decoding.denoising import schedule
from decoding.denoising.holes import OPEN, Holes, behind
from decoding.denoising.schedule import Canvas
from models.errors import ConstraintError

WORDS = "holes"  # in `aux`: uint32[W] of each position
REDRAWS = 100


def on_canvas(part: base.LogitsTransform) -> base.LogitsTransform:
    """Return the form of a transform for canvases; only constraints have another one.

    Its `apply` reads the words of a position, `aux[WORDS]`, if there are any.
    """
    holes, free = part.holes, part.free
    if holes is None:
        return part
    assert free is not None

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return masked(free(state, logits, aux), aux)

    return part._replace(
        init=holes.init, apply=apply, advance=None, forced=None, numbers=()
    )


def masked(logits: Array, aux: dict[str, Array]) -> Array:
    """★ Forbid what the words of a position do; where they allow nothing, change none.

    Positions that are not open may have no words.
    """
    if WORDS not in aux:
        return logits
    allowed = vocab.members(aux[WORDS], logits.shape[-1])
    return jnp.where(allowed.any(), vocab.restricted(logits, allowed), logits)


def of_canvas(canvas: Canvas, size: int) -> Array:
    """★ Return a row's canvas as a constraint reads it, int32[size]."""
    return behind(canvas.tokens, canvas.known, canvas.start, canvas.limit, size)


def words(
    holes: Holes, state: base.State, canvas: Canvas, size: int, index: Array
) -> dict[str, Array]:
    """★ Return the words of the positions `index` int32[C], for `aux`."""
    if holes.allowed is None:
        return {}
    every = holes.allowed(state, of_canvas(canvas, size))
    at = jnp.clip(index - canvas.start, 0, size - 1)
    inside = (index >= canvas.start) & (index < canvas.start + size)
    return {WORDS: jnp.where(inside[:, None], every[at], 0)}


class Admitted(NamedTuple):
    """What is committed of the positions lo + arange(C)."""

    guess: Array  # int32[C]
    commit: Array  # bool[C]


def admitted(
    holes: Holes,
    state: base.State,
    canvas: Canvas,
    size: int,
    proposal: schedule.Proposal,
    commit: Array,
    scores: Array,
) -> Admitted:
    """★ Admit chosen tokens one by one, in falling confidence; lower positions first.

    Args:
        holes: the constraint.
        state: its state.
        canvas: before the commit.
        size: entries of the canvas that the constraint reads.
        proposal: its guesses are drawn from the allowed tokens.
        commit: bool[C], the choice.
        scores: float32[C, V], whose best token a position proposes.
    """
    text = of_canvas(canvas, size)
    window = commit.shape[0]
    index = canvas.lo + jnp.arange(window, dtype=jnp.int32)
    order, count = schedule.ranks(proposal.logp, commit), commit.sum()
    best = jnp.argmax(order == 0)
    if holes.first is None:
        first = proposal.guess[best]
    else:
        every = vocab.top_k(scores[best], scores.shape[-1])[1]
        place = jnp.where(count > 0, index[best] - canvas.start, -1)
        first = holes.first(state, text, place, every)

    def placed(text: Array, at: Array, token: Array) -> Array:
        return text.at[index[at] - canvas.start].set(token, mode="drop")

    def step(carry: tuple) -> tuple:
        number, text, guess, admits = carry
        at = jnp.argmax(order == number)
        token, is_live = guess[at], number < count
        if holes.first is None:
            good = holes.possible(state, placed(text, at, token))
        else:
            few = vocab.top_k(scores[at], min(REDRAWS + 1, scores.shape[-1]))[1]
            place = jnp.where(is_live, index[at] - canvas.start, -1)
            drawn = holes.first(state, text, place, few)
            good = drawn >= 0
            token = jnp.where(good, drawn, token)
        text = jnp.where(good, placed(text, at, token), text)
        return number + 1, text, guess.at[at].set(token), admits.at[at].set(good)

    guess = proposal.guess.at[best].set(first)
    begin = (jnp.int32(1), placed(text, best, first), guess, order == 0)
    more = lambda carry: carry[0] < count
    _, _, guess, admits = lax.while_loop(more, step, begin)
    return Admitted(guess, commit & admits)


def cut(
    holes: Holes, state: base.State, canvas: Canvas, size: int, end: Array, limit: Array
) -> Array:
    """★ Return an earlier limit of a canvas, or the canvas's where it cannot end there.

    Args:
        holes: the constraint.
        state: its state.
        canvas: the canvas.
        size: entries that the constraint reads.
        end: int32[], where given text begins behind the open positions.
        limit: int32[], the limit wanted.
    """
    short = behind(canvas.tokens, canvas.known, canvas.start, limit, size)
    may = (canvas.limit <= end) & holes.possible(state, short)
    return jnp.where(may, limit, canvas.limit)


@functools.lru_cache(16)
def _answers(holes: Holes, size: int) -> Callable:
    """Compile what `check` asks of a program's constraint."""

    def of_row(state: base.State, canvas: Canvas) -> tuple:
        text = of_canvas(canvas, size)
        none = jnp.zeros((size, 1), jnp.uint32)
        bits = none if holes.allowed is None else holes.allowed(state, text)
        return text, holes.possible(state, text), bits

    return jax.jit(jax.vmap(of_row, (base.ROWS, 0)))


def check(
    holes: Holes | None,
    state: base.State,
    canvas: Canvas,
    size: int,
    banned: tuple[int, ...],
) -> None:
    """Refuse canvases that no text of the constraint fills, before the first forward.

    Args:
        holes: the constraint; None: none.
        state: of all rows.
        canvas: leaves [B, ...].
        size: entries that the constraint reads.
        banned: tokens that no text has.

    Raises:
        ConstraintError: there is one; or a text needs a token that is banned.
    """
    if holes is None:
        return
    answers: Any = jax.device_get(_answers(holes, size)(state, canvas))
    for row, (text, possible, bits) in enumerate(zip(*answers)):
        is_open = text == OPEN
        if not is_open.any():
            continue
        given = int((text >= 0).sum())
        if not possible:
            raise ConstraintError(
                f"no text of the constraint fills the canvas of row {row}: "
                f"{int(is_open.sum())} open positions and {given} given ones behind "
                "them; change max_new_tokens, the suffix or the constraint"
            )
        for token in banned if holes.allowed is not None else ():
            if (bits[is_open, token // 32] >> np.uint32(token % 32) & 1).any():
                raise ConstraintError(
                    f"the constraint has token {token}, the mask, in its texts: leave "
                    "it out"
                )
