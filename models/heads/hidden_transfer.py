"""Hidden Transfer: pseudo states of later tokens, made in the middle of the target.

Wu, Liu, Gong, Wang, Li, Wang, Cai, Zhao, *Parallel Decoding via Hidden Transfer for
Lossless Large Language Model Acceleration*, 2024, arXiv 2404.12022. A reconstruction:
the abstract is public, code is not. With h_t the state of token t that enters layer l,

    s_j = T_j h_t  at position t + j,  j = 1 .. k     go on through layers l, l + 1, ..

where each sees the text up to t and the pseudo states before it. The target's own head
on the last state of s_j is the law of x_{t+1+j}. T → `transfer` [k, D, D], all that is
trained. With l behind the last layer this is k linear Medusa heads that share the
target's output rows.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from models import base, transformer
from models.errors import ConfigError
from models.heads.modules import aux_chains, decoder_layer
from models.heads.modules.decoder_layer import Params


def init(key: Array, config: Any, steps: int = 3) -> Params:
    """Draw maps near the identity: a pseudo state begins as the state it comes from."""
    dim = config.d_model
    small = decoder_layer.normal(key, (steps, dim, dim), dim)
    return {"transfer": jnp.eye(dim) + 0.1 * small}


def count(params: Params) -> int:
    return params["transfer"].shape[0]


def born(params: Params, hidden: Array) -> Array:
    """Compute pseudo states s [..., k, D] from states [..., D]."""
    states = jnp.einsum("...d,kde->...ke", hidden, params["transfer"])
    return states.astype(hidden.dtype)


def weights(target: Any, params: Params) -> Any:
    """Join the target's params and the transfer maps: the wrapped model's params."""
    return {**target, "transfer": params["transfer"]}


def wrapped(model: base.LanguageModel, layer: int, size: int) -> base.LanguageModel:
    """Wrap the target so that ids past the vocabulary are pseudo states.

    Such a block has `size` nodes and then `k` pseudo states for each. Below `layer`
    the pseudo states' ids run as ordinary tokens, and the results are dropped.
    """
    vocab = model.config.vocab_size

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        return model.embed(params, jnp.minimum(tokens, vocab - 1), positions)

    def through(params, cache, x, block, lo, hi, taps=()):
        width = size * (1 + count(params))
        if x.shape[1] != width or not lo <= layer <= hi:
            return model.layers(params, cache, x, block, lo, hi, taps)
        x, cache, below = model.layers(params, cache, x, block, lo, layer, taps)
        pseudo = born(params, x[:, :size]).reshape(x.shape[0], -1, x.shape[-1])
        there = (block.tokens >= vocab)[..., None]
        x = jnp.where(there, jnp.concatenate([x[:, :size], pseudo], 1), x)
        x, cache, above = model.layers(params, cache, x, block, layer, hi, taps)
        return x, cache, {**below, **above}

    return model._replace(embed=embed, layers=through)


def sequence(
    params: Params,
    model: base.LanguageModel,
    target: Any,
    hidden: Any,
    layer: int,
    points: Array,
    shape: tuple,
    segments: Array | None = None,
    remat: bool = False,
) -> Array:
    """Compute the final normed pseudo states [B, P, k, D] behind `points` of texts.

    Args:
        params: the transfer maps.
        model: the target.
        target: the target's params.
        hidden: the texts' states [B, T, D] that enter layer i, from `layer` on.
        layer: the layer that pseudo states enter first.
        points: int32[B, P], indices into the texts.
        shape: the texts' [B, T].
        segments: int32[B, T], keeps packed documents apart.
        remat: whether the backward pass recomputes each layer.
    """
    steps = count(params)
    texts, positions, mask = aux_chains.after(points, 1, steps, shape, segments)
    source = jnp.take_along_axis(hidden[layer], points[..., None], 1)
    x = born(params, source).reshape(shape[0], -1, source.shape[-1])
    out = transformer.beside(
        model.config, target, hidden, texts, x, positions, mask, layer, remat
    )
    return out.reshape(*points.shape, steps, -1)


def middle(config: Any, layer: int) -> int:
    """Return `layer`, or half the number of layers for -1."""
    if not -1 <= layer <= config.n_layers:
        raise ConfigError(
            f"layer={layer}: the target has {config.n_layers} layers; use 0 to "
            f"{config.n_layers}, or -1 for the middle"
        )
    return config.n_layers // 2 if layer < 0 else layer


def check(params: Params, target: Any) -> None:
    decoder_layer.check("Hidden Transfer", target, params["transfer"].shape[-1])
