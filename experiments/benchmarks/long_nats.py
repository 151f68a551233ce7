"""Nats of the last tokens of long windows of held-out text, under any cache policy.

    cases(files, ..) -> cases;   nats(lm, cases, method=..) -> float64[cases, tokens]

The expected tokens are a window's last ones. They are forced one by one through the
decode loop, so that a cache policy evicts and reads as it does when it generates; their
log-probabilities are the target's under the policy, before the forcing.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base
from experiments.benchmarks.long_context import Case, Files, passages, written

LAST = 128  # tokens that are judged


def cases(
    files: Files, length: int, count: int = 32, seed: int = 0, last: int = LAST
) -> list[Case]:
    """Cut `count` windows of `length` tokens, the last of which are expected.

    Raises:
        DataError: no file has so many tokens.
    """
    cut = length - last
    return [
        Case(window[:cut], cut, window[cut:])
        for window in passages(files, count, length, seed)
    ]


def nats(lm: Any, cases: Sequence[Case], **settings: Any) -> np.ndarray:
    """Measure -log p of the expected tokens in nats; `settings` are `generate`'s."""
    return -np.asarray(forced_output(lm, cases, **settings).logprobs, np.float64)


def forced_output(lm: Any, cases: Sequence[Case], **settings: Any) -> Any:
    """Decode the expected tokens by force; return the `Output`."""
    out = written(lm, cases, transforms=[forced(cases)], **settings)
    texts = [list(map(int, tokens)) for tokens in out.tokens]
    assert texts == [list(case.expected) for case in cases], "a token was not forced"
    return out


@struct.dataclass
class Row:
    text: Array  # int32[n]: the tokens to write
    written: Array  # int32[]: how many of them are


def forced(cases: Sequence[Case]) -> base.LogitsTransform:
    """Make a transform that writes each case's expected tokens, all equally many.

    A row finds its case by its prompt.
    """
    longest = max(len(case.prompt) for case in cases)
    prompts = np.full((len(cases), longest), -1, np.int32)
    for row, case in zip(prompts, cases):
        row[: len(case.prompt)] = case.prompt
    texts = np.asarray([case.expected for case in cases], np.int32)

    def init(tokens: Array, length: Array) -> base.State:
        index = jnp.arange(longest)
        shown = jnp.where(index < length, tokens[jnp.minimum(index, length - 1)], -1)
        which = (jnp.asarray(prompts) == shown).all(-1).argmax()
        return base.State(Row(jnp.asarray(texts)[which], jnp.int32(0)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        text, count = state.row.text, state.row.written
        token = text[jnp.minimum(count, len(text) - 1)]
        return jnp.where(jnp.arange(logits.shape[-1]) == token, 0.0, -jnp.inf)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        return base.State(state.row.replace(written=state.row.written + 1))

    return base.LogitsTransform(init, apply, advance)
