"""FSPAD: one half of the output learns the target's features, the other its laws.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562, section 3.2. With [a ; f^] the
layer's outputs on noisy features (EAGLE's), h the target's normed states, p its law,

    L = mean_t SmoothL1(f^_{t+1}, h_{t+1})
        + soft mean_t (-sum p_{t+1} log softmax(W_lm a_{t+1}))

Neither loss reaches the other's half of the layer's last matrix. Settings are EAGLE's,
as in the official code.

Metrics: `hit_0`, how often the first guess is the target's likeliest token, `feature`.
"""

from typing import Any

from jax import Array

from models.heads import fspad
from training import grading, losses
from training.fit import Objective
from training.objectives import eagle
from training.teacher import NORM, Teacher, ahead, mean, predicted


def init(key: Array, model: Any, target: Any, bias: bool = True) -> Any:
    """Random params of a layer of the target's size."""
    return fspad.init(key, model.config, bias)


def objective(
    model: Any, soft: float = 0.1, noise: float = 0.2, seed: int = 0, part: int = 0
) -> Objective:
    """The paper's losses; logits of `part` positions exist at a time (0: of all)."""

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        hidden = teacher.hidden[NORM]
        features = eagle.noisy(hidden, batch, noise, seed)
        embedded = ahead(teacher.embed(batch["tokens"]), 1)
        found = fspad.sequence(params, model.config, embedded, features)
        logit, feature = fspad.halves(found)
        wanted, weights = ahead(hidden, 1), predicted(batch, 2)
        regression = mean(losses.smooth_l1(feature, wanted), weights)
        sums = grading.against_teacher(
            teacher, teacher.head, logit, wanted, weights, losses.soft_ce, part
        )
        metrics = {
            "feature": regression,
            "hit_0": grading.mean(sums, "hit"),
            "alpha_0": grading.mean(sums, "alpha"),
        }
        return regression + soft * grading.mean(sums, "loss"), metrics

    return Objective(loss, lambda batch: predicted(batch, 2).sum(), (NORM,))


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Per depth: the draft's own outputs along the text's tokens, and its head."""
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    features = teacher.hidden[NORM]
    found = fspad.unroll(
        params, model.config, embedded, features, depth, lambda s, x: x
    )

    def draft(output: Array) -> Array:
        return teacher.head(fspad.halves(output)[0])

    return [(found[i], draft) for i in range(depth)]
