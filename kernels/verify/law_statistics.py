"""Statistics of a law after one pass, and their merging over parts of a vocabulary.

A part of a vocabulary has the same statistics as a whole one, with tokens counted from
its `offset`. Best tokens merge exactly, sums up to rounding.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from kernels import one_buffer


class Facts(NamedTuple):
    """The statistics of logits [B, N, V]."""

    best: Array  # int32[B, N]: the best token; among equals, the lowest
    top: Array  # float32[B, N]: its logit
    lse: Array  # float32[B, N]: log sum exp(logits / temperature)
    scores: Array  # float32[B, N, M]: logit / temperature of the scored tokens
    drawn: Array  # int32[B, N]: the winner of the Gumbel race
    race: Array  # float32[B, N]: its logit / temperature + noise

    @property
    def logprobs(self) -> Array:
        """float32[B, N, M]: log-probabilities of the scored tokens."""
        return self.scores - self.lse[..., None]


class Rest(NamedTuple):
    """The statistics of two laws p and q: a draw of norm((p - q)+)."""

    drawn: Array  # int32[B, N]: the winner among tokens with p > q
    race: Array  # float32[B, N]: its log(p - q) + noise
    mass: Array  # float32[B, N]: the sum of (p - q)+
    spare: Array  # int32[B, N]: the winner of p's own race
    spare_race: Array  # float32[B, N]

    @property
    def token(self) -> Array:
        """int32[B, N]: the draw; a draw of p where the residual is empty (p = q)."""
        return jnp.where(self.mass > 0, self.drawn, self.spare)


def merge(parts: Facts) -> Facts:
    """Merge the facts of a vocabulary's parts, leaves `[parts, ...]`.

    In a sharded program: `merge(lax.all_gather(facts, axis))`, a few numbers a node.
    """
    top, best = _winner(parts.top, parts.best)
    race, drawn = _winner(parts.race, parts.drawn)
    high = parts.lse.max(0)
    high = jnp.where(high == -jnp.inf, 0.0, high)
    lse = high + jnp.log(jnp.exp(parts.lse - high).sum(0))
    return Facts(best, top, lse, parts.scores.max(0), drawn, race)


def merge_rest(parts: Rest) -> Rest:
    """Merge the residuals of parts, all computed with the lse of the whole laws."""
    race, drawn = _winner(parts.race, parts.drawn)
    spare_race, spare = _winner(parts.spare_race, parts.spare)
    return Rest(drawn, race, parts.mass.sum(0), spare, spare_race)


def _winner(values: Array, tokens: Array) -> tuple[Array, Array]:
    """Return the greatest value and its token; among equals, the lowest token."""
    last = jnp.iinfo(jnp.int32).max
    return one_buffer.two_passes(
        values,
        lambda values: values.max(0),
        lambda values, top: jnp.where(values == top, tokens, last).min(0),
    )
