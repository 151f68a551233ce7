"""Next-token cross-entropy, the objective of a plain language model."""

from typing import Any

import jax.numpy as jnp
from jax import Array, nn

from models import transformer
from models.base import BALANCE
from training.loop.train_step import Objective


def cross_entropy(logits: Array | None, targets: Array) -> Array:
    """Compute `-log softmax(logits)[targets]` in float32 nats.

    `[..., V]`, `[...]` -> `[...]`.
    """
    assert logits is not None, "the model call was made without logits"
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return nn.logsumexp(logits, -1) - picked


def counted(batch: dict[str, Array]) -> Array:
    """Mark float32[B, T]: 1 where the next token is predicted, 0 across documents.

    A token outside the `loss_mask` of a batch is not predicted either.
    """
    weights = jnp.ones(batch["tokens"][:, 1:].shape, jnp.float32)
    if "segments" in batch:
        segments = batch["segments"]
        weights *= segments[:, 1:] == segments[:, :-1]
    if "loss_mask" in batch:
        weights *= batch["loss_mask"][:, 1:]
    return weights


def objective(
    config: transformer.Config, remat: bool = False, balance: float = 0.0
) -> Objective:
    """Build the mean nats a token, over the predicted tokens of a batch.

    Of a mixture of experts `balance` times the excess of `experts.balance` over 1, the
    mean of its layers, is added; a metric has it.
    """
    taps = (BALANCE,) if balance else ()
    mixed = [i for i in range(config.n_layers) if config.layer(i).experts]

    def loss(params: Any, batch: dict[str, Array], target_out: Any) -> tuple:
        tokens, segments = batch["tokens"], batch.get("segments")
        if segments is not None:
            segments = segments[:, :-1]
        text = tokens[:, :-1]
        out = transformer.forward(config, params, text, segments, taps, remat)
        weights = counted(batch)
        nats = cross_entropy(out.logits, tokens[:, 1:])
        mean = (nats * weights).sum() / jnp.maximum(weights.sum(), 1)
        if not balance:
            return mean, {}
        uneven = out.hidden[BALANCE][jnp.asarray(mixed)].mean() - 1
        return mean + balance * uneven, {"uneven": uneven}

    def quantity(params: Any) -> str:
        return "mean nats a token"

    return Objective(loss, weight=lambda batch: counted(batch).sum(), quantity=quantity)
