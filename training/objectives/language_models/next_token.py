"""Next-token cross-entropy, the objective of a plain language model."""

from typing import Any

import jax.numpy as jnp
from jax import Array, nn

from models import transformer
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
    """Mark float32[B, T]: 1 where the next token is predicted, 0 across documents."""
    tokens = batch["tokens"]
    if "segments" not in batch:
        return jnp.ones(tokens[:, 1:].shape, jnp.float32)
    segments = batch["segments"]
    return (segments[:, 1:] == segments[:, :-1]).astype(jnp.float32)


def objective(config: transformer.Config, remat: bool = False) -> Objective:
    """Build the mean nats a token, over the predicted tokens of a batch."""

    def loss(params: Any, batch: dict[str, Array], target_out: Any) -> tuple:
        tokens, segments = batch["tokens"], batch.get("segments")
        if segments is not None:
            segments = segments[:, :-1]
        out = transformer.forward(config, params, tokens[:, :-1], segments, remat=remat)
        weights = counted(batch)
        nats = cross_entropy(out.logits, tokens[:, 1:])
        mean = (nats * weights).sum() / jnp.maximum(weights.sum(), 1)
        return mean, {}

    def quantity(params: Any) -> str:
        return "mean nats a token"

    return Objective(loss, weight=lambda batch: counted(batch).sum(), quantity=quantity)
