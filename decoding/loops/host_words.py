"""Masks that the host computes for the nodes of a round, in one callback.

The host gets the rows' texts and trees, and no state of an earlier round.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.automata import matchers


class Texts(NamedTuple):
    """A round's nodes as texts: a tree behind each row's tokens."""

    numbers: dict[str, Array]  # stream -> int32[B, 2], see `LogitsTransform.numbers`
    tokens: Array  # int32[B, T]
    length: Array  # int32[B]: of the text up to node 0
    nodes: Array  # int32[B, M]: tokens of the tree; node 0's is not read
    parents: Array  # int32[B, M]
    at: Array  # int32[B, N]: the nodes that the models run; -1: padding


def of_tree(program: Any, state: Any, nodes: base.TokenTree) -> Texts | None:
    """Return the nodes of a draft as texts; None where no stream reads them."""
    if not program.transform.numbers:
        return None
    index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
    live = (nodes.kind != base.PAD) & ~state.done[:, None]
    at = jnp.where(live, index, -1)
    trees = (nodes.tokens, nodes.parents, at)
    return Texts(_numbers(program, state), state.tokens, state.length, *trees)


def of_lanes(program: Any, state: Any, run: Any) -> Texts | None:
    """Return the nodes of a search's block as texts: the lanes', then their drafts."""
    if not program.transform.numbers:
        return None
    rows, known, lanes = state.rows, state.nodes, state.lanes.shape[1]
    size = known.tokens.shape[1]
    drafts = size + jnp.arange(run.parents.shape[1], dtype=jnp.int32)
    block = jnp.concatenate(
        [state.lanes, jnp.broadcast_to(drafts, run.parents.shape)], 1
    )
    above = jnp.take_along_axis(block, jnp.maximum(run.parents, 0), 1)
    return Texts(
        _numbers(program, rows),
        rows.tokens,
        rows.length,
        jnp.concatenate([known.tokens, run.tokens[:, lanes:]], 1),
        jnp.concatenate([known.parents, above], 1),
        jnp.where(run.there, block, -1),
    )


def _numbers(program: Any, rows: Any) -> dict[str, Array]:
    over = functools.partial(jax.vmap, in_axes=(base.ROWS,))
    return {name: over(of)(rows.transform) for name, of in program.transform.numbers}


def words(name: str, stream: matchers.Matched, texts: Texts) -> Array:
    """Ask the host for the words of a round's nodes, uint32[B, N, W]."""
    shape = jax.ShapeDtypeStruct((*texts.at.shape, stream.words), jnp.uint32)
    ask = functools.partial(_ask, stream.words)
    return jax.pure_callback(ask, shape, texts.numbers[name], *texts[1:])


def _ask(width: int, *arrays: Any) -> np.ndarray:
    return matchers.answer(width, *map(np.asarray, arrays))
