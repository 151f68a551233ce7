"""The texts that a search asks the worth of: on the device, or left for the host."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.nodes import Nodes, Texts
from decoding.hypotheses.reward import Reward
from decoding.loops.decode import Program


def ask(program: Program, state: Any, texts: Texts, on: Array) -> Any:
    """Value the texts [B, A] of a `SearchState`, or leave them for the host.

    Requests that are not `on` bool[B] keep what they asked, and its values.
    """
    reward = program.reward
    assert reward is not None
    keep = lambda new, old: jnp.where(on[:, None], new, old)
    if reward.ask is not None:
        values = keep(jnp.nan, state.values)
        return replace(state, ask=jax.tree.map(keep, texts, state.ask), values=values)
    values = jnp.where(texts.node >= 0, worths(reward, state, texts), jnp.nan)
    return replace(state, values=keep(values, state.values))


def worths(reward: Reward, state: Any, texts: Texts) -> Array:
    """Value texts by a reward of the device, float32[B, A]."""
    rows = state.rows

    def one(own: base.State, row: tuple, nodes: Nodes, text: Texts) -> Array:
        tokens, prompt = row
        tokens, values, length = written(tokens, prompt, nodes, text)
        if reward.score is not None:
            return reward.score(own, tokens, prompt, length)
        return rewards.worth(reward, own, values, tokens, (prompt, length))

    each = jax.vmap(one, (None, None, None, 0))
    over = jax.vmap(each, (base.ROWS, 0, 0, 0))
    return over(state.reward, (rows.tokens, rows.length), state.nodes, texts)


def written(
    tokens: Array, prompt: Array, nodes: Nodes, text: Texts
) -> tuple[Array, Array, Array]:
    """★ Write a text behind its prompt.

    Returns:
        tokens int32[T]; the values of its nodes float32[T], where a last token that
        never ran has the value of the one before it; and the length int32[] of both.
    """
    node = jnp.maximum(text.node, 0)
    end = prompt + nodes.depth[node]  # without a last token that never ran
    last = text.last >= 0
    tokens = tokens.at[jnp.where(last, end, tokens.shape[0])].set(
        text.last, mode="drop"
    )
    values = jnp.full(tokens.shape, jnp.nan).at[prompt - 1].set(nodes.value[0])
    values = values.at[end].set(nodes.value[node], mode="drop")

    def climb(carry: tuple) -> tuple:
        node, tokens, values = carry
        at = prompt + nodes.depth[node] - 1
        tokens = tokens.at[at].set(nodes.tokens[node])
        values = values.at[at].set(nodes.value[node])
        return nodes.parents[node], tokens, values

    carry = lax.while_loop(lambda c: c[0] > 0, climb, (node, tokens, values))
    return carry[1], carry[2], end + last
