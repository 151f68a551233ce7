"""Searches over independent samples: rows of `generate(n=)`, ranked when they end."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jax import Array

from decoding import base


class Sample(NamedTuple):
    """A text, as the host ranks it."""

    tokens: list[int]  # without the prompt
    text: str | None  # None without a tokenizer
    logprobs: list[float]
    ended: bool  # by EOS or a stop; else by the limit, or not yet
    request: int = 0  # index of its prompt
    prompt: str | None = None  # as the tokenizer spells it
    value: float | None = None  # its reward, where there is one


class Rank(NamedTuple):
    """A search whose hypotheses are `samples` rows a prompt, under any drafter.

    - `order(samples) -> [(index, score), ...]` runs on the host, once a prompt: the
      best first, every index once.
    - `retire(length int32[N], ended bool[N]) -> bool[N]` ★ names the rows that cannot
      win any more; they end where they are. `ended` rows are finished. None: none.
    """

    samples: int
    order: Callable[[Sequence[Sample]], list[tuple[int, float]]]
    retire: Callable[[Array, Array], Array] | None = None
    rewarded: bool = False  # needs a reward
    guarantee: str = base.LOSSY
