"""Medusa-1: train every head on the token at its distance; the target is frozen.

Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.2.1:

    L = sum_i decay^i mean_t -log q_i(x_{t+2+i} | h_t),    i = 0 .. K - 1

Deviations: none from the paper; the authors' script whose rate and batch
configs/heads/medusa.py has (train_legacy.py) adds the heads' losses unweighted.

Metrics: `hit_i`, how often head i's first guess is the text's token.
"""

from typing import Any

from jax import Array

from models.heads import medusa
from models.heads.modules import decoder_layer
from training import draft_metrics
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {"heads": 3}, "objective": {}}


def init(key: Array, model: Any, target: Any, heads: int = 5, own: bool = True) -> Any:
    """Initialise `heads` heads for the target's params.

    `own`: whether each has output rows of its own, or all use the target's head.
    """
    rows = decoder_layer.output_rows(target) if own else None
    return medusa.init(key, model.config, rows, heads)


def objective(
    model: Any, decay: float = 0.8, blocks: int = 1, part: int = 0
) -> Objective:
    """Build the cross-entropy; logits of `part` positions exist at a time (0: all).

    `decay` weighs a head relative to the one before; a head has `blocks` residual
    blocks.
    """

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        total: Any = 0.0
        metrics = {}
        outputs = guesses(params, model, batch, teacher, medusa.count(params), blocks)
        for i, (states, draft) in enumerate(outputs):
            labels, weights = ahead(batch["tokens"], 2 + i), predicted(batch, 2 + i)
            sums = draft_metrics.against_labels(draft, states, labels, weights, part)
            total = total + decay**i * draft_metrics.mean(sums, "loss")
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
        return total, metrics

    def quantity(params: Any) -> str:
        return f"sum over {medusa.count(params)} heads times {decay:g}^i, nats a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), (NORM,), quantity=quantity
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    blocks: int = 1,
) -> list:
    """Return, by depth i, states [B, T, D] and the function to logits [B, T, V]."""
    z = medusa.states(params, teacher.hidden[NORM], blocks)
    count = min(depth, medusa.count(params))
    if not medusa.config_of(params).output_rows:
        return [(z[i], teacher.head) for i in range(count)]
    return [(z[i], lambda z, i=i: z @ params["head"][i].T) for i in range(count)]
