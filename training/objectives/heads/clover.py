"""Clover-2: train every cell step on the target's state and logits at its distance.

Xiao, Gui, Su, Chen, *Clover-2*, 2024, arXiv 2408.00264, by the official code. With f_i
the input of the target's head at depth i, h its normed states, p its distribution,

    L = sum_i decay^i mean_t [ feature SmoothL1(f_i, h_{t+1+i})
                               + soft (-sum p_{t+1+i} log q_i) ],   i = 0 .. steps - 1

The tokens that the cell reads are the text's (teacher forcing).

Deviations from the paper: f is compared with the *normed* states, the head's input. The
official code's option to train on the teacher's nucleus alone is left out.

Metrics: `hit_i` and `alpha_i`, given that the tokens before are the text's.
"""

from typing import Any

from jax import Array

from models.errors import ConfigError
from models.heads import clover
from models.heads.modules import decoder_layer
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, mean, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"steps": 3}}


def init(key: Array, model: Any, target: Any, depth: int = 2, layer: int = -1) -> Any:
    """Initialise `depth` layers as the target's `layer`; -1 is its last."""
    return clover.init(key, model.config, target, depth, layer)


def objective(
    model: Any,
    steps: int = 5,
    decay: float = 0.7,
    feature: float = 10.0,
    soft: float = 1.0,
    part: int = 0,
) -> Objective:
    """Build the loss of `steps` depths.

    Logits of `part` positions exist at a time (0: all). The other arguments are
    weights: `decay` by depth, `feature` of the states, `soft` of the distributions.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps}: use at least 1")

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        total: Any = 0.0
        metrics = {}
        outputs = guesses(params, model, batch, teacher, steps)
        for i, (states, draft) in enumerate(outputs):
            weights = predicted(batch, 2 + i)
            targets = ahead(teacher.hidden[NORM], 1 + i)
            sums = draft_metrics.against_teacher(
                teacher, draft, states, targets, weights, losses.soft_ce, part
            )
            near = mean(losses.smooth_l1(states, targets), weights)
            each = feature * near + soft * draft_metrics.mean(sums, "loss")
            total = total + decay**i * each
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
            metrics[f"alpha_{i}"] = draft_metrics.mean(sums, "alpha")
        return total, metrics

    taps = (model.config.n_layers, NORM)

    def quantity(params: Any) -> str:
        each = f"{feature:g} x states' L1 + {soft:g} x nats"
        return f"sum over {steps} depths times {decay:g}^i, {each}, a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), taps, quantity=quantity
    )


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, f [B, T, D] along the text's tokens, and the target's head."""
    eps = decoder_layer.geometry(model.config).norm_eps
    tokens = batch["tokens"]
    embedded = clover.read(teacher.params, tokens, teacher.embed(tokens))
    hidden = teacher.hidden[model.config.n_layers]
    segments = batch.get("segments")
    s = clover.sequence(params, model.config, ahead(embedded, 1), hidden, segments)
    outputs = [(clover.first(params, s, eps), teacher.head)]
    for i in range(1, depth):
        read = ahead(embedded, 1 + i)
        s = clover.cell(params["cell_1"], s, read, eps)
        outputs.append((clover.other(params, s, read, eps), teacher.head))
    return outputs
