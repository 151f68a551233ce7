"""How good a head's laws are, position by position: losses, hits, ranks.

All are sums over positions, so that parts of a batch add up; `outputs.in_parts` keeps
the logits of one part at a time.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab
from training import losses
from training.teacher.outputs import Teacher, in_parts

Sums = dict[str, Array]


def against_teacher(
    teacher: Teacher,
    draft: Callable[[Any], Array],
    states: Any,
    law: Array,
    weights: Array,
    loss: Callable[[Array, Array], Array],
    part: int = 0,
    kept: Array | None = None,
) -> Sums:
    """Sums of `loss`, of equal arg-maxes `hit`, of `alpha`, and of the `weight`.

    `draft(states)` are the head's logits, of an array [B, T, ...] or a tuple of them;
    `law` [B, T, ...] is that of `outputs.law` which speaks of the same token, weights
    [B, T]. With a draft vocabulary `kept` the teacher's law is normalised on it, and
    positions whose likeliest token is not in it count nothing.
    """

    def sums(states: Any, law: Array, weights: Array) -> Sums:
        p, q, hit, inside = teacher.compared(law, draft(states), kept)
        weights = weights * inside
        return {
            "loss": (weights * loss(p, q)).sum(),
            "hit": (weights * hit).sum(),
            "alpha": (weights * lax.stop_gradient(losses.alpha(p, q))).sum(),
            "weight": weights.sum(),
        }

    return in_parts(sums, part, states, law, weights)


def against_labels(
    draft: Callable[[Any], Array],
    states: Any,
    labels: Array,
    weights: Array,
    part: int = 0,
) -> Sums:
    """The same against tokens `labels` int32[B, T], with the cross-entropy."""

    def sums(states: Any, labels: Array, weights: Array) -> Sums:
        q = draft(states)
        return {
            "loss": (weights * losses.ce(q, labels)).sum(),
            "hit": (weights * (vocab.argmax(q) == labels)).sum(),
            "weight": weights.sum(),
        }

    return in_parts(sums, part, states, labels, weights)


def mean(sums: Sums, name: str) -> Array:
    return sums[name] / jnp.maximum(sums["weight"], 1.0)


def by_rank(
    teacher: Teacher,
    draft: Callable[[Any], Array],
    states: Any,
    hidden: Array,
    weights: Array,
    ranks: int,
    temperature: float,
    part: int = 0,
) -> tuple[Array, Array]:
    """How often the target picks the head's candidate of each rank: sums [ranks], n.

    At a temperature the chance that it does; at 0 whether it is the likeliest token.
    """

    def sums(states: Any, hidden: Array, weights: Array) -> Any:
        best = vocab.top_k(draft(states), ranks)[1]
        p = teacher.head(hidden)
        if temperature:
            chance = vocab.gather(vocab.softmax(p / temperature), best)
        else:
            chance = (best == vocab.argmax(p)[..., None]).astype(jnp.float32)
        return (weights[..., None] * chance).sum(0), weights.sum()

    return in_parts(sums, part, states, hidden, weights)
