"""LUD: train placeholders on the rest of the units that the target is sure of.

Sun et al., *Decoding at the Speed of Thought: Harnessing Parallel Decoding of Lexical
Units for LLMs*, 2024, arXiv 2405.15208, a reconstruction. A token is *sure* where the
target gives it p >= alpha. With q_i the distribution at placeholder i after x_t, which
chose x_{t+1},

    L = 1 / k sum_i mean_t -log q_i(x_{t+1+i}),    i = 1 .. k

over the t for which x_{t+2} .. x_{t+1+i} are all sure: the marked data of the paper,
whose units are runs of such tokens.

Deviations from the paper: only the placeholders are trained, through the frozen target;
the paper fine-tunes the target. They stand behind `points` random positions of a text.

Metrics: `hit_i` by depth from 0, and `unit_i`, the share of positions that are marked.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import vocab
from models.errors import ConfigError
from models.heads import ppd as heads
from models.heads.modules import aux_chains
from training import draft_metrics
from training.loop.train_step import Objective
from training.objectives.heads import ppd
from training.teacher.outputs import NORM, Teacher, ahead, by_part, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"points": 0, "alpha": 0.0}}


def init(key: Array, model: Any, target: Any, slots: int = 3) -> Any:
    """Initialise `slots` placeholders."""
    return heads.init(key, model, target, slots)


def objective(
    model: Any,
    alpha: float = 0.9,
    points: int = 32,
    seed: int = 0,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the cross-entropy on units behind `points` positions of a text (0: all).

    Logits of `part` positions exist at a time (0: all). `remat` recomputes the target's
    layers in the backward pass. `alpha` is the p of a sure token; `seed` is that of the
    positions.
    """
    if points < 0 or not 0 <= alpha <= 1:
        raise ConfigError(
            f"points={points}, alpha={alpha}: use 0 (every position) or more points, "
            "and alpha in [0, 1]"
        )

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        slots = heads.counts(params)[0]
        at = aux_chains.points(batch, points, seed, slots + 1)
        marked = units(batch, teacher, alpha, slots, part)
        total: Any = 0.0
        metrics = {}
        for i, (states, draft) in enumerate(
            ppd.behind(params, batch, teacher, at, remat)
        ):
            valid = jnp.take_along_axis(predicted(batch, 2 + i), at, 1)
            weights = valid * jnp.take_along_axis(marked[i], at, 1)
            labels = jnp.take_along_axis(ahead(batch["tokens"], 2 + i), at, 1)
            sums = draft_metrics.against_labels(draft, states, labels, weights, part)
            total = total + draft_metrics.mean(sums, "loss") / slots
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
            metrics[f"unit_{i}"] = weights.sum() / jnp.maximum(valid.sum(), 1.0)
        return total, metrics

    taps = (*range(model.config.n_layers), NORM)

    def quantity(params: Any) -> str:
        return f"mean over {heads.counts(params)[0]} slots, nats a token of a unit"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), taps, quantity=quantity
    )


def units(
    batch: dict[str, Array], teacher: Teacher, alpha: float, slots: int, part: int = 0
) -> list[Array]:
    """Mark bool[B, T] for each slot i where tokens t + 2 .. t + 2 + i are all sure.

    `alpha` is the p of a sure token; `part` positions' logits exist at a time (0: all).
    """

    def chance(hidden: Array, following: Array) -> Array:
        return jnp.exp(vocab.token_logprob(teacher.head(hidden), following))

    following = ahead(batch["tokens"], 1)
    p = by_part(chance, part, teacher.hidden[NORM], following)
    marked = [ahead(p >= alpha, 1)]
    for i in range(1, slots):
        marked.append(marked[-1] & ahead(p >= alpha, 1 + i))
    return marked


guesses = ppd.guesses
