"""Whole sequences without a cache, and the stacked form of params, for training."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models import base
from models.config import Config
from models.errors import ConfigError
from models.layers import Embedding, Layer, Views, rotations


def forward(
    config: Config,
    params: Any,
    tokens: Array,
    segments: Array | None = None,
    taps: tuple[base.Tap, ...] = (),
    remat: bool = False,
) -> base.ModelOutput:
    """Causal logits of whole sequences `tokens[B, T]`, for training: no cache.

    `segments` int32[B, T] keeps packed documents apart (attention within a segment;
    positions restart). `remat` recomputes each layer in the backward pass. `params` may
    be in the unstacked form or, as `{"embedding", "stacked"}`, in the stacked one.
    """
    length = tokens.shape[1]
    index = jnp.arange(length, dtype=jnp.int32)
    mask = jnp.tril(jnp.ones((1, length, length), bool))
    positions = jnp.broadcast_to(index, tokens.shape)
    if segments is not None:
        mask = mask & (segments[:, :, None] == segments[:, None, :])
        starts = jnp.where(segments != jnp.roll(segments, 1, 1), index, 0)
        positions = index - lax.cummax(starts.at[:, 0].set(0), axis=1)
    mask = jnp.broadcast_to(mask, (tokens.shape[0], length, length))
    layer: Any = Layer(config)
    embedding: Any = Embedding(config)
    top = {"params": params["embedding"]}
    x = embedding.apply(top, tokens, positions, method="embed")
    spun = rotations(config, positions, length)
    views = Views(config, positions, positions, mask)

    def step(weights, x, i):
        args = (views.window(config.window(i)), spun[config.rope(i)], views.bias)
        return layer.apply({"params": weights}, x, *args)

    if remat:
        step = jax.checkpoint(step, static_argnums=(2,))
    hidden: dict[base.Tap, Array] = {}
    if "stacked" in params:
        kinds = {(config.window(i), config.rope(i)) for i in range(config.n_layers)}
        if len(kinds) > 1 or taps:
            raise ConfigError(
                "the stacked form needs equal layers and no taps: use unstack_layers"
            )
        x, _ = lax.scan(lambda x, w: (step(w, x, 0), None), x, params["stacked"])
    else:
        for i in range(config.n_layers):
            if i in taps:
                hidden[i] = x
            x = step(params[f"layer_{i}"], x, i)
        if config.n_layers in taps:
            hidden[config.n_layers] = x
    x = embedding.apply(top, x, method="final_norm")
    if "norm" in taps:
        hidden["norm"] = x
    logits = embedding.apply(top, x, method="logits")
    return base.ModelOutput(logits, base.Hidden(hidden))


def stack_layers(params: dict) -> dict:
    """`{"embedding", "layer_0", ...}` -> `{"embedding", "stacked"}`, axis L first."""
    count = sum(name.startswith("layer_") for name in params)
    trees = [params[f"layer_{i}"] for i in range(count)]
    rest = {k: v for k, v in params.items() if not k.startswith("layer_")}
    return {**rest, "stacked": jax.tree.map(lambda *x: jnp.stack(x), *trees)}


def unstack_layers(params: dict) -> dict:
    """The inverse of `stack_layers`."""
    stacked = params["stacked"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    rest = {k: v for k, v in params.items() if k != "stacked"}
    for i in range(count):
        rest[f"layer_{i}"] = jax.tree.map(lambda x, i=i: x[i], stacked)
    return rest
