"""EAGLE-1: the draft layer learns the target's next feature, and its law.

Li et al., *EAGLE*, 2024, arXiv 2401.15077, section 4.2. With p the target's law, h its
normed states and f^ the layer's outputs on noisy ones,

    L = regression mean_t SmoothL1(f^_{t+1}, h_{t+1})
        + soft mean_t (-sum p_{t+1} log q)
    f^_{t+1} = Layer(fc [e(x_{t+1}) ; h_t + u]),  u ~ (U[0, 1) - 1/2) noise 512 / T

Metrics: `hit_0`, how often the first guess is the target's likeliest token, `feature`.
"""

from typing import Any

import jax
from jax import Array

from models.heads import eagle
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, mean, predicted

# Small, of depth 3, and nothing drawn by a batch's shape: for tests of all heads.
EXAMPLE: dict = {"init": {}, "objective": {"noise": 0.0}}


def init(key: Array, model: Any, target: Any, bias: bool = True) -> Any:
    """Random params of a layer of the target's size."""
    return eagle.init(key, model.config, bias)


def objective(
    model: Any,
    soft: float = 0.1,
    noise: float = 0.2,
    seed: int = 0,
    part: int = 0,
    regression: float = 1.0,
) -> Objective:
    """The paper's losses; logits of `part` positions exist at a time (0: of all)."""

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        features = noisy(teacher.hidden[NORM], batch, noise, seed)
        embedded = ahead(teacher.embed(batch["tokens"]), 1)
        found = eagle.sequence(
            params, model.config, embedded, features, batch.get("segments")
        )
        return graded(found, found, batch, teacher, soft, part, regression)

    return Objective(loss, lambda batch: predicted(batch, 2).sum(), (NORM,))


def graded(
    feature: Array,
    states: Array,
    batch: dict[str, Array],
    teacher: Teacher,
    soft: float,
    part: int,
    regression: float = 1.0,
) -> tuple[Array, dict[str, Array]]:
    """The loss of features [B, T, D] and of the laws that the head makes of `states`.

    Both are of the token after the next; they may be one array.
    """
    wanted, weights = ahead(teacher.hidden[NORM], 1), predicted(batch, 2)
    distance = mean(losses.smooth_l1(feature, wanted), weights)
    sums = draft_metrics.against_teacher(
        teacher, teacher.head, states, wanted, weights, losses.soft_ce, part
    )
    metrics = {
        "feature": distance,
        "hit_0": draft_metrics.mean(sums, "hit"),
        "alpha_0": draft_metrics.mean(sums, "alpha"),
    }
    return regression * distance + soft * draft_metrics.mean(sums, "loss"), metrics


def noisy(hidden: Array, batch: dict[str, Array], noise: float, seed: int) -> Array:
    """The features [B, T, D] and uniform noise of the seed and the first row's number.

    EAGLE's way of preparing the layer for features that are not quite right.
    """
    if not noise:
        return hidden
    key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])
    drawn = jax.random.uniform(key, hidden.shape, hidden.dtype) - 0.5
    return hidden + drawn * (noise * 512 / hidden.shape[1])


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Per depth: the draft's own features along the text's tokens, and the head."""
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    features = teacher.hidden[NORM]
    segments, each = batch.get("segments"), lambda s, x: x
    found = eagle.unroll(
        params, model.config, embedded, features, depth, each, segments
    )
    return [(found[i], teacher.head) for i in range(depth)]
