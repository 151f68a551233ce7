"""Test whether a method's text is plain decoding's, up to ties by rounding.

Blocks of different widths round differently, so two tokens whose scores are equal to
within rounding may swap. To recognise such a *tie*, plain decoding's scores at the
first difference are computed again: the best score less the score of the method's token
is below `64 * eps * max|logit|`. The rest of that text is not compared. Any other
difference, or more than one tie in 10,000 compared tokens, means: not identical.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding import Method, base, compose, noise
from decoding.loops import initial_state
from models.base import ALL, causal_block
from models.distributed import sharding

ULPS = 64
TOKENS_PER_TIE = 10_000
MASKED = (
    -1e29
)  # a constraint puts forbidden tokens below this; they do not count in the scale

# (i, k) -> scores float64[V] of the token after `plain[:k]` of text i, and their scale.
Scores = Callable[[int, int], tuple[np.ndarray, float]]


@dataclass
class Identity:
    """The outcome over all texts."""

    identical: bool = True
    ties: int = 0
    compared: int = 0
    differences: list[dict[str, Any]] = field(default_factory=list)


def compare(
    texts: Sequence[list[int]], plain: Sequence[list[int]], scores: Scores, eps: float
) -> Identity:
    """Compare a method's texts with plain decoding's, one by one.

    Args:
        texts: new tokens of the method.
        plain: new tokens of plain decoding, in the same order.
        scores: plain decoding's scores at a position.
        eps: machine epsilon of the weights' dtype.
    """
    outcome = Identity()
    for i, (text, reference) in enumerate(zip(texts, plain, strict=True)):
        pairs = list(zip(text, reference))
        first = next((k for k, (a, b) in enumerate(pairs) if a != b), len(pairs))
        outcome.compared += first
        if first == len(text) == len(reference):
            continue
        tie = False
        note: dict[str, Any] = {"prompt": i, "at": first}
        if first < len(pairs):
            score, scale = scores(i, first)
            gap = float(score.max() - score[text[first]])
            bound = ULPS * eps * scale
            tie = gap < bound
            note |= {"gap": _finite(gap), "bound": _finite(bound)}
        outcome.differences.append({**note, "tie": tie})
        outcome.ties += tie
        outcome.identical &= tie
    outcome.identical &= outcome.ties <= max(1, outcome.compared // TOKENS_PER_TIE)
    return outcome


def _finite(x: float) -> float | None:
    return x if np.isfinite(x) else None


class Recomputed:
    """Compute `Scores` of plain decoding by one causal block over the whole text."""

    def __init__(
        self,
        lm: Any,
        parts: compose.Composition,
        prompts: Sequence[list[int]],
        plain: Sequence[list[int]],
        keys: Any,
        noisy: bool,
    ):
        self.lm, self.parts, self.keys, self.noisy = lm, parts, keys, noisy
        self.prompts, self.plain = prompts, plain
        self.warp = jax.jit(functools.partial(_warped, parts.program.transform))

    def __call__(self, i: int, k: int) -> tuple[np.ndarray, float]:
        """Return `Scores` of the token after `plain[i][:k]`, noise included."""
        prompt, written = self.prompts[i], self.plain[i][:k]
        raw = logits(self.lm, [*prompt, *written])
        tokens, last = _padded([*prompt, *written]), raw[len(prompt) + k - 1]
        warped = self.warp(tokens, raw, jnp.int32(len(prompt)), jnp.int32(k))
        scale = jnp.where(warped > MASKED, jnp.abs(warped), 0.0).max()
        if self.noisy:
            position = jnp.int32(len(prompt) + k)
            warped = warped + noise.at_position(self.keys[i], position, last.shape[0])
        return np.asarray(sharding.fetch(warped), np.float64), float(scale)


def logits(lm: Any, tokens: list[int]) -> jax.Array:
    """Compute raw logits float32[size, V]; `size` is `len(tokens)` rounded up."""
    padded = _padded(tokens)
    count = jnp.array([len(tokens)], jnp.int32)
    return _causal(lm.model, padded.shape[0])(lm.params, padded[None], count)


def _padded(tokens: list[int]) -> jax.Array:
    """Pad tokens with 0 to a buffer's size: int32[size]."""
    buffer = np.zeros((initial_state.bucket(len(tokens)),), np.int32)
    buffer[: len(tokens)] = tokens
    return jnp.asarray(buffer)


def _warped(
    transform: base.LogitsTransform,
    tokens: jax.Array,
    raw: jax.Array,
    length: jax.Array,
    count: jax.Array,
) -> jax.Array:
    """Warp the logits after `count` tokens behind a prompt of `length`: float[V]."""
    prompt = jnp.where(jnp.arange(tokens.shape[0]) < length, tokens, 0)
    state, advance = transform.init(prompt, length), transform.advance
    if advance is not None:
        state = lax.fori_loop(
            0,
            count,
            lambda j, s: advance(s, tokens[length + j], raw[length - 1 + j], {}),
            state,
        )
    return transform.apply(state, raw[length + count - 1], {})


@functools.lru_cache(maxsize=8)
def _causal(model: Any, size: int) -> Callable[..., jax.Array]:
    """Compile one causal block over `size` tokens; cached, since rows share it."""

    @jax.jit
    def call(params: Any, tokens: jax.Array, count: jax.Array) -> jax.Array:
        cache = model.init_cache(1, size, jax.tree.leaves(params)[0].dtype)
        zero = jnp.zeros((1,), jnp.int32)
        block = causal_block(tokens, zero, count, size, logits_at=ALL)
        return model(params, cache, block)[0].logits[0]

    return call


def claim(method: Method, guarantee: str, temperature: float) -> str | None:
    """Return None if the text must equal plain decoding's, else the reason.

    A method with another verifier has plain decoding's law, not its text.
    """
    if guarantee == base.LOSSY:
        return "LOSSY: no equality is claimed"
    if temperature == 0 or method.verifier is None:
        return None
    name = method.verifier.name.rpartition("/")[2]
    if name == "gumbel_coupled":
        return None
    return f"equal in law only: tests/decoding/verifiers/test_{name}.py"
