"""Metrics of a head's logits, position by position: losses, hits, ranks.

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
    loss: Callable[..., Array],
    part: int = 0,
    kept: Array | None = None,
    places: Array | None = None,
) -> Sums:
    """Sum `loss`, equal arg-maxes `hit`, acceptance rate `alpha`, and their weights.

    `hit` and `alpha` are of all places, by the target's whole distribution: `weight`.
    `loss` is of those whose likeliest token the draft has: `graded`.

    Args:
        teacher: the target's outputs.
        draft: `draft(states)`, the head's logits [..., V].
        states: an array [B, T, ...], or a tuple of them.
        law: [B, T, ...], the rows of `teacher.law` for the same tokens.
        weights: float32[B, T].
        loss: `loss(p, q)` of logits, per position.
        part: positions whose logits exist at a time; 0: all.
        kept: int32[W], a draft vocabulary, on which the teacher is normalised.
            Positions whose likeliest token is outside have no loss.
        places: int32[B, T], numbers of the positions (`outputs.numbered`) for a loss
            that draws: it is called as `loss(p, q, places)`.
    """

    def sums(states: Any, law: Array, weights: Array, *places: Array) -> Sums:
        p, q, hit, inside, mass = teacher.compared(law, draft(states), kept)
        alpha = lax.stop_gradient(losses.alpha(p, q, mass))
        return {
            "loss": (weights * inside * loss(p, q, *places)).sum(),
            "hit": (weights * hit).sum(),
            "alpha": (weights * alpha).sum(),
            "weight": weights.sum(),
            "graded": (weights * inside).sum(),
        }

    numbers = () if places is None else (places,)
    return in_parts(sums, part, states, law, weights, *numbers)


def against_labels(
    draft: Callable[[Any], Array],
    states: Any,
    labels: Array,
    weights: Array,
    part: int = 0,
) -> Sums:
    """Sum the same against tokens `labels` int32[B, T], with the cross-entropy."""

    def sums(states: Any, labels: Array, weights: Array) -> Sums:
        q = draft(states)
        return {
            "loss": (weights * losses.ce(q, labels)).sum(),
            "hit": (weights * (vocab.argmax(q) == labels)).sum(),
            "weight": weights.sum(),
        }

    return in_parts(sums, part, states, labels, weights)


def mean(sums: Sums, name: str) -> Array:
    """Average the sum `name` over the places that it is of."""
    places = sums["weight"]
    if name == "loss" and "graded" in sums:
        places = sums["graded"]
    return sums[name] / jnp.maximum(places, 1.0)


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
    """Sum how often the target picks the head's candidate of each rank.

    At a temperature: the probability of the candidate. At 0: whether it is the
    likeliest token.

    Args:
        teacher: the target's outputs.
        draft: `draft(states)`, the head's logits [..., V].
        states: an array [B, T, ...], or a tuple of them.
        hidden: [B, T, D], the target's normed states for the same tokens.
        weights: float32[B, T].
        ranks: candidates of a position.
        temperature: the target's.
        part: positions whose logits exist at a time; 0: all.

    Returns:
        float32[ranks] and float32[], the sums of picks and of weights.
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
