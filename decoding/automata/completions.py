"""Which fillings of a canvas with holes a token automaton accepts, on the device.

A canvas is int32[n] of tokens; -1 is a *hole*, which exactly one token fills. Entries
of -2, behind the canvas's end, are read as nothing. The states that the canvas reaches
from the left meet those that accept from the right:

    reach[0] = {start}    reach[i + 1] = behind token i (a hole: any) from reach[i]
    live[n]  = accept     live[i]      = those that token i (a hole: any) takes to
                                         live[i + 1]

Token t may stand at i if it takes some state of reach[i] to one of live[i + 1]. A gap
of m holes is m tokens. The published code of constrained diffusion
(eth-sri/constrained-diffusion, commit 2682359) by default lets a gap be of any length,
and so admits canvases that nothing fills. Machines with a stack: `canvas_summaries.py`,
on the host.

The automaton has its end of sequence as a token, if any (`with_end`): then a text that
is over goes on with it up to the canvas's end. A text may also end with the canvas.

All functions are pure and of fixed shapes, for one canvas. Cost: n·Q·(Q + K) bits for Q
states and K classes of tokens, and a gather over n·V for the words.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding.automata import token_dfa
from models.base import pack_bits


@struct.dataclass
class Tables:
    """A token automaton for canvases; Q and K are powers of two."""

    next: Array  # int16 | int32[Q, K]; -1: forbidden
    classes: Array  # int16 | int32[V]
    moves: Array  # bool[Q, Q]: whether some token leads from one state to the other
    accept: Array  # bool[Q]
    start: Array  # int32[]; -1: no text


def with_end(automaton: token_dfa.TokenDFA, eos: Sequence[int]) -> token_dfa.TokenDFA:
    """Let the tokens `eos` end a text, behind which they alone may stand.

    A last state and a last class are added. Other tokens have the bytes of none of
    `eos` (`token_dfa.lift` with b"" for these).
    """
    states, width = automaton.next.shape
    step = np.full((states + 1, width + 1), token_dfa.DEAD, np.int32)
    step[:states, :width] = automaton.next
    accept = np.append(automaton.accept, True)
    step[accept, width] = states
    classes = automaton.classes.copy()
    classes[list(eos)] = width
    return token_dfa.TokenDFA(step, classes, accept, automaton.start)


def tables(automaton: token_dfa.TokenDFA, least: tuple[int, int] = (1, 1)) -> Tables:
    """Put an automaton on the device, padded so that like sizes share a program.

    Args:
        automaton: the automaton.
        least: states and classes of the tables, at least.
    """
    sizes = map(max, automaton.next.shape, least)
    padded = [1 << (size - 1).bit_length() for size in sizes]
    room = [(0, more - size) for more, size in zip(padded, automaton.next.shape)]
    step = np.pad(automaton.next, room, constant_values=token_dfa.DEAD)
    moves = np.zeros((len(step), len(step)), bool)
    sources, columns = np.nonzero(step != token_dfa.DEAD)
    moves[sources, step[sources, columns]] = True
    return Tables(
        jnp.asarray(token_dfa.compact(step)),
        jnp.asarray(token_dfa.compact(automaton.classes)),
        jnp.asarray(moves),
        jnp.asarray(np.pad(automaton.accept, room[0])),
        jnp.int32(automaton.start),
    )


def _behind(tables: Tables, reach: Array, token: Array) -> Array:
    """Return the states behind a token, behind any (-1) or behind none, bool[Q]."""
    to = tables.next[:, tables.classes[jnp.maximum(token, 0)]].astype(jnp.int32)
    size = len(reach)
    known = jnp.zeros(size, bool)
    known = known.at[jnp.where(to < 0, size, to)].max(reach, mode="drop")
    read = jnp.where(token < 0, (reach[:, None] & tables.moves).any(0), known)
    return jnp.where(token < -1, reach, read)


def _before(tables: Tables, live: Array, token: Array) -> Array:
    """Return the states that a token, any (-1) or none takes to `live`, bool[Q]."""
    to = tables.next[:, tables.classes[jnp.maximum(token, 0)]].astype(jnp.int32)
    known = jnp.append(live, False)[to]  # DEAD is the last
    read = jnp.where(token < 0, (tables.moves & live).any(1), known)
    return jnp.where(token < -1, live, read)


def _begin(tables: Tables) -> Array:
    return jnp.arange(len(tables.accept)) == tables.start


def completable(tables: Tables, canvas: Array) -> Array:
    """Return whether some filling of `canvas` int32[n] is accepted, bool[]."""
    read = lambda reach, token: (_behind(tables, reach, token), None)
    reach, _ = lax.scan(read, _begin(tables), canvas)
    return (reach & tables.accept).any()


def fillings(tables: Tables, canvas: Array) -> Array:
    """Return the tokens with which the canvas stays completable, uint32[n, W].

    The bits of position i are tokens, least first, W = ceil(V / 32): those with which
    in place of its entry, a hole or a token, some filling of the others is accepted;
    none behind the canvas's end.
    """

    def back(live: Array, token: Array) -> tuple[Array, Array]:
        return _before(tables, live, token), live

    def read(reach: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        token, live = at
        to_live = jnp.append(live, False)[tables.next.astype(jnp.int32)]
        return _behind(tables, reach, token), (reach[:, None] & to_live).any(0)

    _, lives = lax.scan(back, tables.accept, canvas, reverse=True)
    allowed = (
        lax.scan(read, _begin(tables), (canvas, lives))[1] & (canvas >= -1)[:, None]
    )
    return pack_bits(allowed[:, tables.classes])
