"""Rewards: what a text is worth, for searches that choose by more than likelihood."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.hypotheses.rank import Sample
from models.errors import MethodError

TEXT, PREFIX = "text", "prefix"


class Reward(NamedTuple):
    """The worth of a text; one of the first three functions is given.

    - `ask(samples) -> [float, ...]` runs on the host, once for all texts at hand.
    - `score(state, tokens[T], prompt, length) -> float32[]` ★ reads a prompt of
      `prompt` int32[] tokens and its text up to `length` int32[].
    - `node(params, state, hidden) -> float32[B, N]` gives a value to every node of a
      block, from the states of the target or of `stream`, {tap: [B, N, D]}. `reduce`
      (state, values[T], tokens[T], prompt, length) -> float32[] ★ makes the worth of a
      text of the values of its tokens; None: the last token's value.
    - `init(prompts) -> State` of the numbers, row leaves [prompts, ...].
    - `level`: whether a beginning of a text has a worth (PREFIX), or the whole alone.
    """

    ask: Callable[[Sequence[Sample]], Sequence[float]] | None = None
    score: Callable[[base.State, Array, Array, Array], Array] | None = None
    node: Callable[[base.Params, base.State, dict], Array] | None = None
    reduce: Callable[[base.State, Array, Array, Array, Array], Array] | None = None
    init: Callable[[int], base.State] = lambda prompts: base.State()
    level: str = TEXT
    stream: base.Stream | None = None
    taps: tuple = ()


def worth(
    reward: Reward, state: base.State, values: Array, tokens: Array, ends: tuple
) -> Array:
    """★ Return the worth of a text by the values [T] of its tokens, float32[].

    Args:
        reward: with `node`.
        state: its state.
        values: float32[T].
        tokens: int32[T].
        ends: lengths int32[] of the prompt, and of prompt and text.
    """
    if reward.reduce is None:
        return values[jnp.maximum(ends[1] - 1, 0)]
    return reward.reduce(state, values, tokens, *ends)


def asked(ask: Callable, samples: Sequence[Sample]) -> list[float]:
    """Ask a reward on the host for the worth of texts.

    Raises:
        MethodError: another number of values than of texts, or one that is no number.
    """
    found = list(ask(samples))
    if len(found) != len(samples):
        raise MethodError(
            f"the reward gave {len(found)} values for {len(samples)} texts: return one "
            "number a text"
        )
    for value, sample in zip(found, samples):
        if not np.ndim(value) == 0 or np.isnan(value):
            raise MethodError(
                f"the reward of {sample.text!r} is {value!r}: return a number"
            )
    return [float(value) for value in found]
