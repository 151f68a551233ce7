"""Which part of a draft a round verifies, and in a block of which width."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base


def narrowest(program, state, draft):
    """Choose the nodes to verify, bool[B, N], and the narrowest width that holds them.

    Returns:
        The nodes, the index int32[] of the width, and the new state.
    """
    live, least = draft.kind != base.PAD, jnp.int32(0)
    if program.width.keep is not None:
        live, least, width = program.width.keep(
            state.width, draft, program.widths, ~state.done
        )
        state = replace(state, width=width)
    nodes = jnp.maximum(live.sum(1).max(), least)
    return live, (nodes > jnp.asarray(program.widths[:-1], jnp.int32)).sum(), state


def one_of(choice: Array, functions: list, state: Any) -> tuple:
    """Return `functions[choice](state)`, a state and more, without copies.

    `lax.switch` would copy every layer's cache, in and out of its branches. The carry
    of a loop stays in place: each function is the body of a loop of one turn or none.
    """
    like = jax.eval_shape(functions[0], state)[1:]
    more = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    carry = (jnp.bool_(False), state, *more)
    for i, function in enumerate(functions):
        run = lambda carry, function=function: (jnp.bool_(False), *function(carry[1]))
        carry = lax.while_loop(lambda c: c[0], run, (choice == i, *carry[1:]))
    return carry[1:]
