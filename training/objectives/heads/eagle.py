"""EAGLE-1: train the draft layer on the target's next feature and distribution.

Li et al., *EAGLE*, 2024, arXiv 2401.15077, section 4.2. With p the target's
distribution, h its normed states and f^ the layer's outputs on noisy ones,

    L = regression mean_t SmoothL1(f^_{t+1}, h_{t+1})
        + soft mean_t (-sum p_{t+1} log q)
    f^_{t+1} = Layer(fc [e(x_{t+1}) ; h_t + u]),  u ~ (U[0, 1) - 1/2) noise 512 / T

T is the conversation's own length, where documents are kept apart (`data.segments`,
`data.whole`). Elsewhere, and so in the recipes for `tiny`, it is the window's, since a
window is one text.

Metrics: `hit_0`, how often the first guess is the target's likeliest token, `feature`.
"""

from typing import Any

import jax
from jax import Array

from models.heads import eagle
from models.transformer import sequence_forward
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, mean, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"noise": 0.0}}


def init(key: Array, model: Any, target: Any, bias: bool = True) -> Any:
    """Initialise a random layer of the target's size."""
    return eagle.init(key, model.config, bias)


def objective(
    model: Any,
    soft: float = 0.1,
    noise: float = 0.2,
    seed: int = 0,
    part: int = 0,
    regression: float = 1.0,
) -> Objective:
    """Build the paper's loss; logits of `part` positions exist at a time (0: all).

    `regression` and `soft` weigh the two terms; `noise` and `seed` are `noisy`'s.
    """

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        features = noisy(teacher.hidden[NORM], batch, noise, seed)
        embedded = ahead(teacher.embed(batch["tokens"]), 1)
        outputs = eagle.sequence(
            params, model.config, embedded, features, batch.get("segments")
        )
        return graded(outputs, outputs, batch, teacher, soft, part, regression)

    def quantity(params: Any) -> str:
        return f"{regression:g} x states' L1 + {soft:g} x nats, mean a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), (NORM,), quantity=quantity
    )


def graded(
    feature: Array,
    states: Array,
    batch: dict[str, Array],
    teacher: Teacher,
    soft: float,
    part: int,
    regression: float = 1.0,
) -> tuple[Array, dict[str, Array]]:
    """Compute the loss of features [B, T, D] and of the head's logits on `states`.

    Args:
        feature: the draft's features of the token after the next.
        states: the head's input for that token; may be the same array.
        batch: tokens and masks.
        teacher: the target's outputs.
        soft: weight of the cross-entropy.
        part: positions whose logits exist at a time; 0: all.
        regression: weight of the features' smooth L1 loss.

    Returns:
        The loss, and the metrics `feature`, `hit_0`, `alpha_0`.
    """
    targets, weights = ahead(teacher.hidden[NORM], 1), predicted(batch, 2)
    distance = mean(losses.smooth_l1(feature, targets), weights)
    sums = draft_metrics.against_teacher(
        teacher, teacher.head, states, targets, weights, losses.soft_ce, part
    )
    metrics = {
        "feature": distance,
        "hit_0": draft_metrics.mean(sums, "hit"),
        "alpha_0": draft_metrics.mean(sums, "alpha"),
    }
    return regression * distance + soft * draft_metrics.mean(sums, "loss"), metrics


def noisy(hidden: Array, batch: dict[str, Array], noise: float, seed: int) -> Array:
    """Add EAGLE's uniform noise to features [B, T, D]; 0 adds none.

    The layer then trains on inexact features, like its own outputs. The noise depends
    on the seed and the first row's number. Its width falls with the length of the text
    that a position is of.
    """
    if not noise:
        return hidden
    key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])
    drawn = jax.random.uniform(key, hidden.shape, hidden.dtype) - 0.5
    length: Any = hidden.shape[1]
    if "segments" in batch:
        length = sequence_forward.together(batch["segments"]).sum(-1)[..., None]
    return hidden + (drawn * (noise * 512 / length)).astype(hidden.dtype)


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, the draft's features along the text's tokens, and the head."""
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    features = teacher.hidden[NORM]
    segments, each = batch.get("segments"), lambda s, x: x
    outputs = eagle.unroll(
        params, model.config, embedded, features, depth, each, segments
    )
    return [(outputs[i], teacher.head) for i in range(depth)]
