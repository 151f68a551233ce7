"""Medusa-2: train the target and its heads together, the target by LoRA.

Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.2.2. With p' the changed model's
distribution, h' its states and q_i head i's distribution from them,

    L = LM + coefficient sum_i decay^(i+1) mean_t -log q_i(x_{t+2+i} | h'_t)
    LM = mean_t -log p'(x_{t+1}), or where `distil` mean_t KL(p || p'), p the target's

The params are {"lora", "heads"}; the target's own stay as they are. Over the first
`warm` rows of the stream only the heads are trained (the paper's first stage). Over the
`ramp` rows after them the coefficient rises from 0 as the first quarter of a sine (its
other warm-up). The heads' rate is four times that of the changes in the authors'
recipes: `config.train.factors` (configs/heads/medusa2.py). Changes and their dropout
are those of `models/surgery/lora.py`.

Deviations from the authors' code: KL is a mean over learnt positions, there the sum
over them divided by all positions. One schedule of the rate runs over both stages, and
the first one computes the gradients of the changes and drops them; there each stage is
a run of its own. AdamW's state is float32, there of 8 bits. The changes' own deviations
are in `models/surgery/lora.py`.

Metrics: `hit_i`; `lm`, the first term.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models import transformer
from models.errors import ConfigError
from models.surgery import lora
from models.transformer import low_rank
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.objectives.heads import medusa
from training.teacher.outputs import NORM, Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {"heads": 3}, "objective": {}}


def init(key: Array, model: Any, target: Any, heads: int = 5, rank: int = 32) -> Any:
    """Initialise Medusa's heads, and zero changes of `rank` to the target's weights."""
    keys = jax.random.split(key)
    uncapped = not model.config.final_softcap
    return {
        "heads": medusa.init(keys[0], model, target, heads),
        "lora": lora.init(keys[1], target, rank, uncapped),
    }


def objective(
    model: Any,
    coefficient: float = 0.2,
    decay: float = 0.8,
    warm: int = 0,
    ramp: int = 0,
    distil: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
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
        dropout: share of the inputs of every change that is dropped.
        seed: of the dropout.
        blocks: residual blocks of a head.
        part: positions whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.

    Raises:
        ConfigError: negative rows, or a dropout outside [0, 1).
    """
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"dropout={dropout}: use a share in [0, 1)")
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
            moves = batch["row"][0] >= warm
            changes = jax.tree.map(
                lambda x: jnp.where(moves, x, lax.stop_gradient(x)), changes
            )
        key = None
        if dropout:
            key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])
        changed = changed_teacher(model, changes, batch, teacher, dropout, key, remat)
        states, head = changed_head(changes, changed, dropout, key)
        weights = predicted(batch, 1)
        if distil:
            sums = draft_metrics.against_teacher(
                teacher,
                head,
                states,
                teacher.law,
                weights,
                losses.kl,
                part,
            )
        else:
            labels = ahead(batch["tokens"], 1)
            sums = draft_metrics.against_labels(head, states, labels, weights, part)
        lm = draft_metrics.mean(sums, "loss")
        heads, metrics = of_heads.loss(params["heads"], batch, changed)
        weight = weight_at(batch["row"][0])
        return lm + weight * decay * heads, {**metrics, "lm": lm}

    def quantity(params: Any) -> str:
        heads = of_heads.quantity(params["heads"])
        return f"the target's nats a token + {coefficient * decay:g} x {heads}"

    return Objective(loss, lambda batch: predicted(batch, 1).sum(), quantity=quantity)


def changed_teacher(
    model: Any,
    changes: Any,
    batch: Any,
    teacher: Teacher,
    dropout: float = 0.0,
    key: Array | None = None,
    remat: bool = False,
) -> Teacher:
    """Run the changed layers on a batch, with gradients to `changes` alone.

    The teacher's head is the target's own; `changed_head` adds its change.
    """
    out = transformer.forward(
        model.config,
        lora.beside(teacher.params, changes, dropout, key),
        batch["tokens"],
        batch.get("segments"),
        taps=(NORM,),
        remat=remat,
    )
    return Teacher(teacher.params, out.hidden, model, batch.get("segments"))


def changed_head(
    changes: Any, changed: Teacher, dropout: float = 0.0, key: Array | None = None
) -> tuple[Any, Any]:
    """Return states, and the function of them to the changed model's logits.

    Inputs of the head's change are dropped before `states` are cut into parts: one
    trace serves all parts, and would draw the same for each.
    """
    hidden = changed.hidden[NORM]
    if lora.HEAD not in changes:
        return hidden, changed.head
    inside = hidden
    if key is not None:
        inside = low_rank.dropped(jax.random.fold_in(key, 2**16), hidden, dropout)

    def head(states: tuple[Array, Array]) -> Array:
        return changed.head(states[0]) + lora.head_change(changes, states[1])

    return (hidden, inside), head


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
