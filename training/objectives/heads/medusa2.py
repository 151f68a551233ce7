"""Medusa-2: train the target and its heads together, the target by LoRA.

Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.2.2. With p' the changed model's
distribution, h' its states and q_i head i's distribution from them,

    L = LM + coefficient sum_i decay^i mean_t -log q_i(x_{t+2+i} | h'_t)
    LM = mean_t -log p'(x_{t+1}), or where `distil` mean_t KL(p || p'), p the target's

The params are {"lora", "heads"}; the target's own stay as they are. Over the first
`warm` rows of the stream only the heads are trained (the paper's first stage). Over the
`ramp` rows after them the coefficient rises from 0 as the first quarter of a sine (its
other warm-up). The heads' rate is four times that of the changes in the authors'
recipes: `config.train.factors` (configs/heads/medusa2.py).

Deviations from the paper: `coefficient` counts from head 0 with decay^0.

Metrics: `hit_i`; `lm`, the first term.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models import transformer
from models.errors import ConfigError
from models.surgery import lora
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.objectives.heads import medusa
from training.teacher.outputs import NORM, Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {"heads": 3}, "objective": {}}


def init(key: Array, model: Any, target: Any, heads: int = 5, rank: int = 32) -> Any:
    """Initialise Medusa's heads, and zero changes of `rank` to the target's layers."""
    keys = jax.random.split(key)
    return {
        "heads": medusa.init(keys[0], model, target, heads),
        "lora": lora.init(keys[1], target, rank),
    }


def objective(
    model: Any,
    coefficient: float = 0.2,
    decay: float = 0.8,
    warm: int = 0,
    ramp: int = 0,
    distil: bool = False,
    blocks: int = 1,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the joint loss.

    Args:
        model: the target's.
        coefficient: weight of the heads' loss.
        decay: weight of a head relative to the one before.
        warm: rows over which only the heads are trained.
        ramp: rows over which the coefficient rises.
        distil: compare p' with the target's distribution, not with the text.
        blocks: residual blocks of a head.
        part: positions whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.

    Raises:
        ConfigError: negative rows.
    """
    for name, rows in (("warm", warm), ("ramp", ramp)):
        if rows < 0:
            raise ConfigError(f"{name}={rows}: use 0 (none) or more rows")
    of_heads = medusa.objective(model, decay, blocks, part)

    def weight_at(row: Array) -> Any:
        """Return the heads' weight: full during `warm`, then rising over `ramp`."""
        if not ramp:
            return coefficient
        share = jnp.clip((row - warm) / ramp, 0.0, 1.0)
        return coefficient * jnp.where(row < warm, 1.0, jnp.sin(jnp.pi / 2 * share))

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        changes = params["lora"]
        if warm:
            moves = (batch["row"][0] >= warm).astype(jnp.float32)
            changes = jax.tree.map(
                lambda x: moves * x + (1 - moves) * lax.stop_gradient(x), changes
            )
        changed = changed_teacher(model, changes, batch, teacher, remat)
        states, weights = changed.hidden[NORM], predicted(batch, 1)
        if distil:
            sums = draft_metrics.against_teacher(
                teacher,
                changed.head,
                states,
                teacher.law,
                weights,
                losses.kl,
                part,
            )
        else:
            labels = ahead(batch["tokens"], 1)
            sums = draft_metrics.against_labels(
                changed.head, states, labels, weights, part
            )
        lm = draft_metrics.mean(sums, "loss")
        heads, metrics = of_heads.loss(params["heads"], batch, changed)
        weight = weight_at(batch["row"][0])
        return lm + weight * heads, {**metrics, "lm": lm}

    def quantity(params: Any) -> str:
        heads = of_heads.quantity(params["heads"])
        return f"the target's nats a token + {coefficient:g} x {heads}"

    return Objective(loss, lambda batch: predicted(batch, 1).sum(), quantity=quantity)


def changed_teacher(
    model: Any, changes: Any, batch: Any, teacher: Teacher, remat: bool = False
) -> Teacher:
    """Run the changed model on a batch, with gradients to `changes` alone."""
    params = lora.merged(teacher.params, changes)
    out = transformer.forward(
        model.config,
        params,
        batch["tokens"],
        batch.get("segments"),
        taps=(NORM,),
        remat=remat,
    )
    return Teacher(params, out.hidden, model, batch.get("segments"))


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    blocks: int = 1,
) -> list:
    """Return Medusa's guesses, of the changed model as teacher and its heads."""
    return medusa.guesses(params, model, batch, teacher, depth, blocks)
