"""Whole sequences without a cache, and the stacked form of params, for training."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models import base
from models.distributed import sharding
from models.errors import ConfigError
from models.transformer import rematerialisation
from models.transformer.config import Config
from models.transformer.layer import Layer
from models.transformer.modules import Embedding, Views, attend, rotations


def forward(
    config: Config,
    params: Any,
    tokens: Array,
    segments: Array | None = None,
    taps: tuple[base.Tap, ...] = (),
    remat: bool = False,
    share: Callable[[int, Array], Array] | None = None,
    mask: Array | None = None,
    positions: Array | None = None,
    ahead: int | None = None,
) -> base.ModelOutput:
    """Compute the logits of whole sequences, for training: no cache.

    Args:
        config: the transformer's config.
        params: unstacked, or stacked as `{"embedding", "stacked"}`.
        tokens: int32[B, T].
        segments: int32[B, T], keeps packed documents apart: attention stays within a
            segment, and positions restart.
        taps: the hidden states to return; see `base.LanguageModel`. `base.BALANCE` is
            float32[L], `experts.balance` of each layer, 0 of a dense one.
        remat: whether the backward pass recomputes each layer.
        share: `share(i, x)` -> float32[B, T], the share of layer i's change to x that
            is added: 0 passes the layer. None: every layer runs.
        mask: bool[1 or B, T, T], the tokens that each token sees (`bidirectional`,
            `block_causal`, `noised_beside_clean`); None: those before it, and itself.
        positions: int32[B, T]; None: `places`.
        ahead: of a mask, how many tokens behind itself a token sees at most; None: all.
            A small number saves work.

    Raises:
        ConfigError: a mask for a model with sliding windows or ALiBi, which are of
            causal attention; or the stacked form of layers that differ.
    """
    length = tokens.shape[1]
    if mask is None:
        mask, ahead = causal(length, segments), 0
    else:
        if config.every_window or config.position == "alibi":
            raise ConfigError(
                f"windows={config.every_window} and position={config.position!r}: "
                "sliding windows and ALiBi are of causal attention; leave `mask` out, "
                "or use a model with full attention"
            )
        mask = mask if segments is None else mask & together(segments)
    if positions is None:
        positions = places(tokens.shape, segments)
    mask = jnp.broadcast_to(mask, (tokens.shape[0], length, length))
    layers: Any = [Layer(config, config.layer(i), ahead) for i in _each(config)]
    embedding: Any = Embedding(config)
    top = {"params": params["embedding"]}
    x = embedding.apply(top, tokens, positions, method="embed")
    x = sharding.constrain(x, "batch - -")
    spun = rotations(config, positions, length)
    views = Views(config, positions, positions, mask)

    def around(i):
        return views.window(config.window(i)), spun[config.rope(i)], views.bias

    def step(weights, x, i):
        """Return the layer's output, and the balance of its experts; 0: none."""
        given = ({"params": weights}, x, *around(i))
        x, sown = layers[i].apply(*given, mutable=[base.BALANCE])
        return sharding.constrain(x, "batch - -"), sum(jax.tree.leaves(sown), 0.0)

    def last_input(weights, x, i):  # the compiler joins this attention with the step's
        weights = {"params": weights}
        x = layers[i].apply(weights, x, *around(i), method="attended")
        return layers[i].apply(weights, x, method="feed_forward_input")

    if remat:
        step = rematerialisation.remat(step, (2,))
    hidden: dict[base.Tap, Array] = {}
    if "stacked" in params:
        kinds = {config.layer(i) for i in _each(config)}
        if len(kinds) > 1 or taps or share is not None:
            raise ConfigError(
                "the stacked form needs equal layers, all run, and no taps: use "
                "unstack_layers"
            )
        x, _ = lax.scan(lambda x, w: (step(w, x, 0)[0], None), x, params["stacked"])
    else:
        balance = []
        for i in range(config.n_layers):
            if i in taps:
                hidden[i] = x
            if base.FFN_INPUT in taps and i == config.n_layers - 1:
                hidden[base.FFN_INPUT] = last_input(params[f"layer_{i}"], x, i)
            after, even = step(params[f"layer_{i}"], x, i)
            balance.append(even)
            if share is not None:
                part = share(i, x)[..., None].astype(x.dtype)
                after = x + part * (after - x)
            x = after
        if config.n_layers in taps:
            hidden[config.n_layers] = x
        if base.BALANCE in taps:
            hidden[base.BALANCE] = jnp.asarray(balance, jnp.float32)
    x = embedding.apply(top, x, method="final_norm")
    if "norm" in taps:
        hidden["norm"] = x
    logits = embedding.apply(top, x, method="logits")
    logits = sharding.constrain(logits, "batch - vocab")
    return base.ModelOutput(logits, base.Hidden(hidden))


def _each(config: Config) -> range:
    return range(config.n_layers)


def places(shape: tuple[int, ...], segments: Array | None = None) -> Array:
    """Return positions int32[B, T] of packed texts: they restart with every segment."""
    index = jnp.arange(shape[1], dtype=jnp.int32)
    if segments is None:
        return jnp.broadcast_to(index, shape)
    starts = jnp.where(segments != jnp.roll(segments, 1, 1), index, 0)
    return index - lax.cummax(starts.at[:, 0].set(0), axis=1)


def causal(length: int, segments: Array | None = None) -> Array:
    """Return the causal mask bool[1 or B, T, T], within segments if given."""
    mask = jnp.tril(jnp.ones((1, length, length), bool))
    return mask if segments is None else mask & together(segments)


def bidirectional(length: int) -> Array:
    """Return the mask bool[1, T, T] of which every token sees all others."""
    return jnp.ones((1, length, length), bool)


def block_causal(length: int, block: Array | int) -> Array:
    """Return the mask bool[B, T, T] of blocks that see themselves and those before.

    `block` int32[B] (or a number: B is 1) is the size of a row's blocks, which are
    counted from position 0.
    """
    of = _blocks(length, block)
    return of[:, None, :] <= of[:, :, None]


def noised_beside_clean(length: int, block: Array | int) -> Array:
    """Return the mask bool[B, 2T, 2T] of a noised copy beside the clean text.

    Token 2i is the noised copy of clean token 2i + 1. A noised block sees itself and
    the clean blocks before it. The clean text is block-causal. (Arriola et al., *Block
    Diffusion: Interpolating Between Autoregressive and Diffusion Language Models*,
    2025, arXiv 2503.09573, section 3.) A token sees at most 2 `block` - 2 ahead.
    """
    of = jnp.repeat(_blocks(length, block), 2, 1)
    is_clean = jnp.arange(2 * length) % 2 > 0
    query, key = of[:, :, None], of[:, None, :]
    from_noised = jnp.where(is_clean, key < query, key == query)
    from_clean = is_clean & (key <= query)
    return jnp.where(is_clean[:, None], from_clean, from_noised)


def _blocks(length: int, block: Array | int) -> Array:
    """Return the number of each position's block, int32[B, T]."""
    sizes = jnp.atleast_1d(jnp.asarray(block, jnp.int32))
    return jnp.arange(length, dtype=jnp.int32) // sizes[:, None]


def together(segments: Array) -> Array:
    """Return bool[B, T, T]: which pairs of tokens share a segment."""
    return segments[:, :, None] == segments[:, None, :]


def beside(
    config: Config,
    params: Any,
    states: Any,
    texts: Array,
    x: Array,
    positions: Array,
    mask: Array,
    lo: int = 0,
    remat: bool = False,
) -> Array:
    """Run extra nodes that see a text which does not see them.

    Of the text only keys and values are recomputed.

    Args:
        config: the transformer's config.
        params: unstacked.
        states: `states[i]` [B, T, D] enters layer i (taps of `forward` on the text).
        texts: int32[B, T], the text's positions.
        x: [B, E, D], the extra nodes' states that enter layer `lo`.
        positions: int32[B, E], of the extra nodes.
        mask: bool[B, E, T + E]: which text and extra nodes an extra node sees.
        lo: the first layer.
        remat: whether the backward pass recomputes each layer.

    Returns:
        The extra nodes' states after the final norm, [B, E, D].
    """
    length = texts.shape[1]
    every = jnp.concatenate([texts, positions], 1)
    spun = rotations(config, every, length)
    views = Views(config, positions, every, mask)

    def step(weights, text, x, i):
        variables: Any = {"params": weights}
        layer: Any = Layer(config, config.layer(i))
        both = jnp.concatenate([text, x], 1)
        rotation = spun[config.rope(i)]
        q, k, v = layer.apply(variables, both, rotation, method="project")
        seen, k, v = views.window(config.window(i)), k.swapaxes(1, 2), v.swapaxes(1, 2)
        sinks = weights["attention"]["sinks"] if config.sinks else None
        out = attend(config, q[:, length:], k, v, seen, views.bias, sinks)
        x = x + layer.apply(variables, out, method="merge")
        return layer.apply(variables, x, method="fed")

    if remat:
        step = rematerialisation.remat(step, (3,))
    for i in range(lo, config.n_layers):
        x = step(params[f"layer_{i}"], states[i], x, i)
    embedding: Any = Embedding(config)
    top = {"params": params["embedding"]}
    return embedding.apply(top, x, method="final_norm")


def stack_layers(params: dict) -> dict:
    """Stack `{"embedding", "layer_0", ...}` to `{"embedding", "stacked"}`, L first."""
    count = sum(name.startswith("layer_") for name in params)
    trees = [params[f"layer_{i}"] for i in range(count)]
    rest = {k: v for k, v in params.items() if not k.startswith("layer_")}
    return {**rest, "stacked": jax.tree.map(lambda *x: jnp.stack(x), *trees)}


def unstack_layers(params: dict) -> dict:
    """Unstack params: the inverse of `stack_layers`."""
    stacked = params["stacked"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    rest = {k: v for k, v in params.items() if k != "stacked"}
    for i in range(count):
        rest[f"layer_{i}"] = jax.tree.map(lambda x, i=i: x[i], stacked)
    return rest
