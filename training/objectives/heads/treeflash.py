"""TreeFlash: a block's slots and their correction, on the text's tokens.

Rheinboldt, Berdoz, Wattenhofer, *TreeFlash*, 2026, arXiv 2606.03819. The loss is
DFlash's, cross-entropies weighted by exp(-j / decay), of the corrected laws after the
text's tokens (`training/objectives/block_losses.py`).

Deviations: the paper's training code is not public, so the loss is that of the block
that it corrects.

Metrics: `hit_j` and `alpha_j` of each slot.
"""

from collections.abc import Sequence
from typing import Any

from jax import Array

from models.heads import treeflash
from training.loop.train_step import Objective
from training.objectives import block_losses
from training.teacher.outputs import Teacher

# For tests of all heads: small, depth 3, an anchor at every token of their texts.
EXAMPLE: dict = {"init": {"layers": 2, "block": 4}, "objective": {}}
WEIGHTS = block_losses.Weights(decay=4.0)


def init(key: Array, model: Any, target: Any, **fields: Any) -> Any:
    """Draw the heads; `fields` are those of `models.heads.treeflash.init`."""
    return treeflash.init(key, model.config, **fields)


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
        treeflash.HEAD, model, weights, anchors, seed, part, taps, remat=remat
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
        treeflash.HEAD, params, model, batch, teacher, depth, taps
    )
