"""Hidden Transfer: maps to pseudo states learn what the target will say there.

Wu et al., *Hidden Transfer*, 2024, arXiv 2404.12022; the losses are reconstructed.
With s_j the normed last state of the jth pseudo state behind x_t, q_j its law, h the
target's normed states and p its law,

    L = sum_j decay^(j - 1) mean_t [ soft KL(p_{t+j} || q_j)
                                     + feature SmoothL1(s_j, h_{t+j}) ],  j = 1 .. k

Only the maps are trained: the gradient passes through the target's layers from l on.

Deviations from the paper: which of the two losses it takes, and its weights, are not
known to us; the default is the first alone. Pseudo states stand behind `points` random
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

# Small, of depth 3, and nothing drawn by a batch's shape: for tests of all heads.
EXAMPLE: dict = {"init": {}, "objective": {"points": 0, "feature": 1.0}}


def init(key: Array, model: Any, target: Any, steps: int = 3) -> Any:
    """Maps for `steps` pseudo states."""
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
    """The losses behind `points` positions of a text (0: all).

    Logits of `part` positions exist at a time (0: of all); `remat` recomputes the
    target's layers in the backward pass.
    """
    if points < 0:
        raise ConfigError(f"points={points}: use 0 (every position) or more")
    at_layer = hidden_transfer.middle(model.config, layer)

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        room = hidden_transfer.count(params) + 1
        at = aux_chains.points(batch, points, seed, room)
        total: Any = 0.0
        metrics = {}
        found = _guesses(params, batch, teacher, at_layer, at, remat)
        for i, (states, draft) in enumerate(found):
            wanted = ahead(teacher.hidden[NORM], 1 + i)
            wanted = jnp.take_along_axis(wanted, at[..., None], 1)
            weights = jnp.take_along_axis(predicted(batch, 2 + i), at, 1)
            sums = draft_metrics.against_teacher(
                teacher, draft, states, wanted, weights, losses.kl, part
            )
            each = soft * draft_metrics.mean(sums, "loss")
            if feature:
                near = mean(losses.smooth_l1(states, wanted), weights)
                each = each + feature * near
            total = total + decay**i * each
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
            metrics[f"alpha_{i}"] = draft_metrics.mean(sums, "alpha")
        return total, metrics

    taps = (*range(at_layer, max(model.config.n_layers, at_layer + 1)), NORM)
    return Objective(loss, lambda batch: predicted(batch, 2).sum(), taps)


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    layer: int = -1,
) -> list:
    """Per depth: states [B, T, D] and the target's head."""
    every = aux_chains.points(batch, 0, 0, 0)
    at_layer = hidden_transfer.middle(model.config, layer)
    return _guesses(params, batch, teacher, at_layer, every)[:depth]


def _guesses(params, batch, teacher, layer, at, remat=False) -> list:
    found = hidden_transfer.sequence(
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
    return [(found[..., i, :], teacher.head) for i in range(found.shape[-2])]
