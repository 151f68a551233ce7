"""Domino: a block's slots, from their own laws to those that a GRU corrects.

Huang et al., *Domino*, 2026, arXiv 2605.29707. With w_j = exp(-j / 7), q the corrected
law after the text's tokens and u the block's own,

    L = sum w_j ((1 - b) (-log q(y)) + b (-log u(y))) / sum w_j

b falls from 1 to 0 over the first `blend` rows of the training, in the paper all of
them. The published training: 256 anchors, AdamW at 6e-4.

Metrics: `hit_j` and `alpha_j` of each slot.
"""

from collections.abc import Sequence
from typing import Any

from jax import Array

from models.heads import domino
from training.loop.train_step import Objective
from training.objectives import block_losses
from training.teacher.outputs import Teacher

# For tests of all heads: small, depth 3, an anchor at every token of their texts.
EXAMPLE: dict = {
    "init": {"layers": 2, "block": 3, "width": 8, "rank": 8},
    "objective": {},
}
WEIGHTS = block_losses.Weights(decay=7.0)


def init(key: Array, model: Any, target: Any, **fields: Any) -> Any:
    """Draw the heads; `fields` are those of `models.heads.domino.init`."""
    return domino.init(key, model.config, **fields)


def objective(
    model: Any,
    anchors: int = 256,
    seed: int = 0,
    part: int = 0,
    taps: Sequence[int] = (),
    remat: bool = True,
    **terms: Any,
) -> Objective:
    """Build the loss.

    Args:
        model: the target's.
        anchors: blocks of a text.
        seed: of the anchors.
        part: slots whose logits exist at a time; 0: all.
        taps: states that the head reads, rising; (): the default ones.
        remat: compute activations again in the backward pass, to save memory.
        terms: of `block_losses.Weights`, other than `WEIGHTS`.

    Raises:
        ConfigError: unknown terms, weights that give no loss, or no anchors.
    """
    weights = WEIGHTS.changed(**terms)
    return block_losses.objective(
        domino.HEAD, model, weights, anchors, seed, part, taps, remat=remat
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    taps: Sequence[int] = (),
) -> list:
    """Return, by depth, the slots of a block at every token, and the head."""
    return block_losses.guesses(domino.HEAD, params, model, batch, teacher, depth, taps)
