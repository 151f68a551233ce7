"""FSPAD: train one half of the output on the target's features, one on its logits.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562, section 3.2. With [a ; f^] the
layer's outputs on noisy features (EAGLE's), h the target's normed states, p its
distribution,

    L = mean_t SmoothL1(f^_{t+1}, h_{t+1})
        + soft mean_t (-sum p_{t+1} log softmax(W_lm a_{t+1}))

Neither loss reaches the other's half of the layer's last matrix. Settings are EAGLE's,
as in the official code.

Metrics: `hit_0`, how often the first guess is the target's likeliest token, `feature`.
"""

from typing import Any

from jax import Array

from models.heads import fspad
from training.loop.train_step import Objective
from training.objectives.heads import eagle
from training.teacher.outputs import NORM, Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"noise": 0.0}}


def init(key: Array, model: Any, target: Any, bias: bool = True) -> Any:
    """Initialise a random layer of the target's size."""
    return fspad.init(key, model.config, bias)


def objective(
    model: Any, soft: float = 0.1, noise: float = 0.2, seed: int = 0, part: int = 0
) -> Objective:
    """Build the paper's loss; logits of `part` positions exist at a time (0: all)."""

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        features = eagle.noisy(teacher.hidden[NORM], batch, noise, seed)
        embedded = ahead(teacher.embed(batch["tokens"]), 1)
        outputs = fspad.sequence(
            params, model.config, embedded, features, batch.get("segments")
        )
        logit, feature = fspad.halves(outputs)
        return eagle.graded(feature, logit, batch, teacher, soft, part)

    def quantity(params: Any) -> str:
        return f"states' L1 + {soft:g} x nats, mean a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), (NORM,), quantity=quantity
    )


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, the draft's outputs along the text's tokens, and its head."""
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    features = teacher.hidden[NORM]
    segments, each = batch.get("segments"), lambda s, x: x
    outputs = fspad.unroll(
        params, model.config, embedded, features, depth, each, segments
    )

    def draft(output: Array) -> Array:
        return teacher.head(fspad.halves(output)[0])

    return [(outputs[i], draft) for i in range(depth)]
