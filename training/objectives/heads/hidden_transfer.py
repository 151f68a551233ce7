"""Hidden Transfer: train maps to pseudo states on the target's later distributions.

Wu et al., *Hidden Transfer*, 2024, arXiv 2404.12022; the losses are reconstructed.
With s_j the normed last state of the jth pseudo state behind x_t, q_j its distribution,
h the target's normed states and p its distribution,

    L = sum_j decay^(j - 1) mean_t [ soft KL(p_{t+j} || q_j)
                                     + feature SmoothL1(s_j, h_{t+j}) ],  j = 1 .. k

Only the maps are trained: the gradient passes through the target's layers from l on.

Deviations from the paper: we do not know which of the two losses it takes, nor its
weights; the default is the first alone. Pseudo states stand behind `points` random
positions of every text.

Metrics: `hit_i` and `alpha_i` by depth from 0.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads import hidden_transfer
from models.heads.modules import aux_chains
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, mean, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"points": 0, "feature": 1.0}}


def init(key: Array, model: Any, target: Any, steps: int = 3) -> Any:
    """Initialise the maps for `steps` pseudo states."""
    return hidden_transfer.init(key, model.config, steps)


def objective(
    model: Any,
    layer: int = -1,
    points: int = 32,
    soft: float = 1.0,
    feature: float = 0.0,
    decay: float = 0.8,
    seed: int = 0,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the loss behind `points` positions of a text (0: all).

    Args:
        model: the target's.
        layer: l, from which pseudo states run; -1: the middle one.
        points: positions of a text with pseudo states behind them.
        soft: weight of the KL.
        feature: weight of the smooth L1 loss.
        decay: weight of each pseudo state relative to the one before.
        seed: of the positions.
        part: positions whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.
    """
    if points < 0:
        raise ConfigError(f"points={points}: use 0 (every position) or more")
    at_layer = hidden_transfer.middle(model.config, layer)

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        room = hidden_transfer.count(params) + 1
        at = aux_chains.points(batch, points, seed, room)
        total: Any = 0.0
        metrics = {}
        chains = _guesses(params, batch, teacher, at_layer, at, remat)
        for i, (states, draft) in enumerate(chains):
            targets = ahead(teacher.hidden[NORM], 1 + i)
            targets = jnp.take_along_axis(targets, at[..., None], 1)
            weights = jnp.take_along_axis(predicted(batch, 2 + i), at, 1)
            sums = draft_metrics.against_teacher(
                teacher, draft, states, targets, weights, losses.kl, part
            )
            each = soft * draft_metrics.mean(sums, "loss")
            if feature:
                near = mean(losses.smooth_l1(states, targets), weights)
                each = each + feature * near
            total = total + decay**i * each
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
            metrics[f"alpha_{i}"] = draft_metrics.mean(sums, "alpha")
        return total, metrics

    taps = (*range(at_layer, max(model.config.n_layers, at_layer + 1)), NORM)

    def quantity(params: Any) -> str:
        count = hidden_transfer.count(params)
        return f"sum over {count} pseudo states times {decay:g}^i, KL in nats a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), taps, quantity=quantity
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    layer: int = -1,
) -> list:
    """Return, by depth, states [B, T, D] and the target's head."""
    every = aux_chains.points(batch, 0, 0, 0)
    at_layer = hidden_transfer.middle(model.config, layer)
    return _guesses(params, batch, teacher, at_layer, every)[:depth]


def _guesses(params, batch, teacher, layer, at, remat=False) -> list:
    states = hidden_transfer.sequence(
        params,
        teacher.model,
        teacher.params,
        teacher.hidden,
        layer,
        at,
        batch["tokens"].shape,
        batch.get("segments"),
        remat,
    )
    return [(states[..., i, :], teacher.head) for i in range(states.shape[-2])]
