"""DSpark: a block's slots and its Markov head, on the target's laws.

Cheng et al., *DSpark*, 2026, arXiv 2607.05147. With p the target's law of a slot's
token and q the draft's after the text's tokens,

    L = sum w_j (0.1 (-log q(y)) + 0.9 sum |p - q| + BCE(c_j, 1 - sum |p - q| / 2))

over the sum of w_j = exp(-j / 4), j from 0; c_j is the confidence head's, whose target
has no gradient. The published training: 512 anchors, AdamW at 6e-4.

Metrics: `hit_j`, `alpha_j` of each slot, and `confidence`, the mean distance between a
slot's c_j and its acceptance rate.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from models.heads import dflash, dspark
from training.loop.train_step import Objective
from training.objectives import block_losses
from training.teacher.outputs import Teacher

# For tests of all heads: small, depth 3, an anchor at every token of their texts.
EXAMPLE: dict = {
    "init": {"layers": 2, "block": 3, "rank": 8},
    "objective": {},
}
WEIGHTS = block_losses.Weights(ce=0.1, l1=0.9, decay=4.0)


def init(key: Array, model: Any, target: Any, **fields: Any) -> Any:
    """Draw the heads; `fields` are those of `models.heads.dspark.init`."""
    return dspark.init(key, model.config, **fields)


def objective(
    model: Any,
    anchors: int = 512,
    confidence: float = 1.0,
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
        confidence: weight of the confidence head's cross-entropy, where there is one.
        seed: of the anchors.
        part: slots whose logits exist at a time; 0: all.
        taps: states that the head reads, rising; (): the default ones.
        remat: compute activations again in the backward pass, to save memory.
        terms: of `block_losses.Weights`, other than `WEIGHTS`.

    Raises:
        ConfigError: unknown terms, weights that give no loss, or no anchors.
    """
    weights = WEIGHTS.changed(**terms)

    def further(params, teacher, slots, blocks, found) -> tuple:
        if not dspark.config_of(params).confidence:
            return 0.0, {}
        seen = dspark.watched(params, blocks.tokens, slots)
        guess = dspark.rated(params, seen)
        wanted = lax.stop_gradient(1.0 - found["tv"])
        each = blocks.weights * block_losses.fall(weights, guess.shape[-1])
        loss = optax.sigmoid_binary_cross_entropy(guess, wanted)
        loss = (each * loss).sum() / jnp.maximum(each.sum(), 1e-9)
        apart = jnp.abs(jax.nn.sigmoid(guess) - wanted)
        mean = (blocks.weights * apart).sum() / jnp.maximum(blocks.weights.sum(), 1.0)
        return confidence * loss, {"confidence": lax.stop_gradient(mean)}

    return block_losses.objective(
        dspark.HEAD, model, weights, anchors, seed, part, taps, further, remat=remat
    )


def confidences(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    taps: Sequence[int] = (),
) -> tuple[Array, ...]:
    """Rate the blocks at all tokens of texts, beside what becomes of them.

    Returns:
        The logits of c_j, the chances that drafts are accepted after the text's tokens,
        and whether the text goes on so far: float32[B, T, K] each. () without a
        confidence head.
    """
    if not dspark.config_of(params).confidence:
        return ()
    fixed = {**batch, "row": jnp.zeros(len(batch["tokens"]), jnp.int32)}
    every, read = batch["tokens"].shape[1], dflash.states(model.config, taps)
    arguments = (params, model, fixed, teacher, WEIGHTS, every, 0, 256, read)
    slots, blocks, found = block_losses.graded(dspark.HEAD, *arguments)
    rated = dspark.rated(params, dspark.watched(params, blocks.tokens, slots))
    return rated, 1.0 - found["tv"], blocks.weights


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    taps: Sequence[int] = (),
) -> list:
    """Return, by depth, the slots of a block at every token, and the head."""
    return block_losses.guesses(dspark.HEAD, params, model, batch, teacher, depth, taps)
