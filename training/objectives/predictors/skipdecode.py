"""SkipDecode: train a target under the schedule that leaves its layers out.

Del Corro, Del Giorno, Agarwal, Yu, Awadallah, Mukherjee, *SkipDecode: Autoregressive
Skip Decoding with Batching and Caching for Efficient LLM Inference*, 2023, arXiv
2307.02628. A row is a prompt and its text. Token t takes the layers of
decoding/exits/skipdecode.py,

    L = CE of the text, with the layers  l < w  and  l >= n - (active(t) - w)

of n. What is trained are low-rank changes of the target (models/surgery/lora.py).

Deviations from the paper: it trains all weights. The prompt, whose length the paper's
schedule does not know, has no loss here.

Metrics: `ce`; `layers`, the mean over the text of the layers that ran.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding.exits import skipdecode
from models.errors import ConfigError
from training.loop.train_step import Objective
from training.objectives.predictors import first
from training.teacher.outputs import mean, predicted


def scheduled(
    depth: int, prompt: int, length: int, most: int, least: int, tokens: int, warm: int
) -> Array:
    """Return float32[L, T]: 1 where a layer runs for a row's token.

    Args:
        depth: L, layers of the target.
        prompt: tokens of a row before its text.
        length: T, tokens of a row.
        most: max, layers of the prompt and of the text's first token.
        least: min, those of its last.
        tokens: those over which the layers shrink.
        warm: first layers that are never skipped.
    """
    index = jnp.arange(length, dtype=jnp.int32) - (prompt - 1)
    runs = skipdecode.runs(index, most, least, tokens, warm, depth)
    return runs.astype(jnp.float32)


def objective(
    model: Any,
    prompt: int,
    least: int,
    tokens: int,
    most: int | None = None,
    warm: int = 1,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the loss; the params are those of `models.surgery.lora`.

    Args:
        model: the target's.
        prompt: tokens of a row that have no loss.
        least: as of `scheduled`.
        tokens: likewise.
        most: likewise; None: all layers.
        warm: likewise.
        part: places whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.
    """
    if prompt < 1:
        raise ConfigError(f"prompt={prompt}: use 1 or more tokens")
    depth = model.config.n_layers
    most = depth if most is None else most

    def weight(batch: dict[str, Array]) -> Array:
        place = jnp.arange(batch["tokens"].shape[1])
        return predicted(batch, 1) * (place >= prompt - 1)

    def loss(changes: Any, batch: dict[str, Array], frozen: Any) -> tuple:
        length = batch["tokens"].shape[1]
        runs = scheduled(depth, prompt, length, most, least, tokens, warm)
        share = lambda i, x: jnp.broadcast_to(runs[i], x.shape[:2])
        weights = weight(batch)
        rest = (batch, weights, share, part, remat)
        ce = first.cross_entropy(model, frozen["target"], changes, *rest)
        layers = jnp.broadcast_to(runs.sum(0), weights.shape)
        return ce, {"ce": ce, "layers": mean(layers, weights)}

    def quantity(params: Any) -> str:
        return f"nats a token, {most} to {least} layers"

    return Objective(loss, lambda batch: weight(batch).sum(), quantity=quantity)
