"""Rewards of finished texts on the device: one pass for all of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.reward import Reward
from decoding.loops import prefill
from models.base import NONE, LanguageModel

CHUNK = 64  # tokens of a row in a call


def of_rows(
    reward: Reward,
    model: LanguageModel,
    params: base.Params,
    state: base.State,
    texts: tuple[Array, Array, Array],
) -> Array:
    """Value every text, float32[B].

    Args:
        reward: of the device.
        model: the target.
        params: all params, by name.
        state: the reward's, row leaves [B, ...].
        texts: tokens int32[B, T], lengths int32[B] of the prompts, and of prompts and
            texts.
    """
    tokens, prompt, length = texts
    if reward.score is not None:
        score = jax.vmap(reward.score, (base.ROWS, 0, 0, 0))
        return score(state, tokens, prompt, length)

    def worth(state: base.State, values: Array, tokens: Array, *ends: Array) -> Array:
        return rewards.worth(reward, state, values, tokens, ends)

    values = of_nodes(reward, model, params, state, tokens, length)
    every = jax.vmap(worth, (base.ROWS, 0, 0, 0, 0))
    return every(state, values, tokens, prompt, length)


def of_nodes(
    reward: Reward,
    model: LanguageModel,
    params: base.Params,
    state: base.State,
    tokens: Array,
    length: Array,
) -> Array:
    """Value every token of every row, float32[B, T]; undefined from `length` on."""
    assert reward.node is not None
    name = "target"
    if reward.stream is not None:
        model, name = reward.stream.model, reward.stream.params
    weights = base.read(params, name)
    batch, size = tokens.shape
    dtype = jax.tree.leaves(weights)[0].dtype
    cache = model.init_cache(batch, size + CHUNK, dtype)
    none = jnp.zeros((batch, 0), jnp.int32)
    every: Any = length + 1  # a chunk leaves the last token out, and this has none

    def body(carry: tuple) -> tuple:
        at, cache, values = carry
        block, _, count = prefill.chunk(tokens, every, cache, CHUNK)
        block = block.replace(logits_at=NONE)
        out, cache = model(weights, cache, block, reward.taps)
        found = reward.node(params, state, out.hidden)  # type: ignore[misc]
        values = lax.dynamic_update_slice_in_dim(values, found, at, 1)
        return at + CHUNK, cache.commit(none, count - 1, linear=True), values

    def more(carry: tuple) -> Array:
        return (carry[1].length < length).any()

    room = jnp.zeros((batch, -(-size // CHUNK) * CHUNK))
    return lax.while_loop(more, body, (jnp.int32(0), cache, room))[2][:, :size]
