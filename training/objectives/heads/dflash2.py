"""DFlash 2: a block's slots and their selector, on the text's tokens.

Inco AI, *DFlash 2*, 2026, inco.ai/blog/dflash2. With u the block's own law, q the
selector's over its candidates after the text's token, and w_j = exp(-j / decay),

    L = sum w_j (base (-log u(y)) + ce (-log q(y))) / sum w_j

base = ce = 1. A slot whose candidates lack y has no second term (trainers differ: some
put y in the last candidate's place).

Metrics: `hit_j` and `alpha_j` of each slot, and `recall_j`, the share of slots whose
candidates hold the text's token.
"""

from collections.abc import Sequence
from typing import Any

from jax import Array

from models.heads import dflash2
from training.loop.train_step import Objective
from training.objectives import block_losses
from training.teacher.outputs import Teacher

# For tests of all heads: small, depth 3, an anchor at every token of their texts.
EXAMPLE: dict = {
    "init": {"layers": 2, "block": 4, "rank": 8, "convolution": 8, "candidates": 6},
    "objective": {},
}
WEIGHTS = block_losses.Weights(decay=4.0, base=1.0, some=True)


def init(key: Array, model: Any, target: Any, **fields: Any) -> Any:
    """Draw the heads; `fields` are those of `models.heads.dflash2.init`."""
    return dflash2.init(key, model.config, **fields)


def objective(
    model: Any,
    anchors: int = 512,
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
        dflash2.HEAD, model, weights, anchors, seed, part, taps, remat=remat
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
    return block_losses.guesses(
        dflash2.HEAD, params, model, batch, teacher, depth, taps
    )
