"""Layers of block drafters: a block's slots see the text's features and each other.

A layer is a decoder layer (`decoder_layer`) with a norm before its attention and norms
of queries and keys. Its queries are of the block alone; its keys and values are of the
features H of the text and of the block. H is read as it is: the layer's first norm, the
residual and the MLP are the block's alone.

With convolutions (DFlash 2, inco.ai/blog/dflash2) a sublayer f of the normed input u
reads and writes through two taps over the slots of its block, a slot's own and the one
before it, whose kernels are a base and a function K u of the slot:

    u'_k = sum_o (base_{0,o} + (K u_k)_{0,o}) u_{k-o},    y = f(u')
    y'_k = sum_o (base_{1,o} + (K u_k)_{1,o}) y_{k-o},    o = 0, 1; 0 before the block

K u is shared by groups of channels. At first base_{.,0} = 1, the rest 0.

`read` and `block` serve a cache in decoding, `at_anchors` whole texts in training.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from kernels.dispatch import AUTO
from models import base
from models.cache_layouts import kv_cache
from models.distributed import sharding
from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params
from models.transformer import cached_attention, rematerialisation, sequence_forward
from models.transformer.config import Config
from models.transformer.modules import (
    NEGATIVE,
    product,
    rotate,
    rotations,
    split_heads,
)

CONVOLUTIONS = ("attention_convolution", "mlp_convolution")


def init(key: Array, c: Config, group: int = 0) -> Params:
    """Draw float32 params of a layer of `c`'s size.

    `group`: channels that share a convolution's kernel; 0: no convolutions.
    """
    params: Params = {
        "input_norm": jnp.ones((c.d_model,)),
        "q_norm": jnp.ones((c.head_dim,)),
        "k_norm": jnp.ones((c.head_dim,)),
        **decoder_layer.init_layer(key, c),
    }
    if group and (group < 0 or c.d_model % group):
        raise ConfigError(
            f"convolution={group}: use a divisor of the width {c.d_model}, or 0"
        )
    if group:
        for name in CONVOLUTIONS:
            base_ = jnp.zeros((2, 2, c.d_model)).at[:, 0].set(1.0)
            kernel = jnp.zeros((c.d_model, 2, 2, c.d_model // group))
            params[name] = {"base": base_, "kernel": kernel}
    return params


def taps(params: Params, u: Array) -> Array:
    """Compute a convolution's kernels [..., 2, 2, D] of the slots' inputs [..., D]."""
    own = product(u, params["kernel"])
    return params["base"] + jnp.repeat(own, u.shape[-1] // own.shape[-1], -1)


def convolved(kernels: Array, x: Array) -> Array:
    """Apply kernels [..., W, 2, D] to the slots x [..., W, D] of blocks."""
    before = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 0), (0, 0)])[..., :-1, :]
    return kernels[..., 0, :] * x + kernels[..., 1, :] * before


def feed_forward(layer: Params, c: Config, x: Array) -> Array:
    """Return `x + MLP(norm(x))` of slots [..., W, D], convolved where it is so."""
    if "mlp_convolution" not in layer:
        return decoder_layer.feed_forward(layer, c, x)
    u = decoder_layer.rms(x, layer["norm"], c.norm_eps)
    kernels = taps(layer["mlp_convolution"], u)
    up = product(convolved(kernels[..., 0, :, :], u), layer["up"])
    y = product(jax.nn.silu(up[..., 0, :]) * up[..., 1, :], layer["down"])
    return x + convolved(kernels[..., 1, :, :], y)


def keys(layer: Params, c: Config, features: Array, positions: Array) -> tuple:
    """Project features [B, N, D] at `positions` to k and v [B, N, G, d], k rotated."""
    both = product(features, layer["qkv"][:, :, -2:])
    # Where devices share a KV head, the compiler would gather the cache they go to.
    both = sharding.constrain(both, "* * kv_heads - -")
    k, v = jnp.moveaxis(both, -2, 0)
    cos, sin = rotations(c, positions, c.max_positions)[0]
    k = decoder_layer.rms(k, layer["k_norm"], c.norm_eps)
    return rotate(k, cos[:, :, None], sin[:, :, None]), v


def entered(layer: Params, c: Config, x: Array) -> tuple[Array, Array | None]:
    """Return what attention reads of slots [..., W, D], and the kernel for its end."""
    u = decoder_layer.rms(x, layer["input_norm"], c.norm_eps)
    if "attention_convolution" not in layer:
        return u, None
    kernels = taps(layer["attention_convolution"], u)
    return convolved(kernels[..., 0, :, :], u), kernels[..., 1, :, :]


def project(layer: Params, c: Config, u: Array, positions: Array) -> tuple:
    """Project slots [B, N, D]: q `[B, N, G, R, d]`, scaled, k and v `[B, N, G, d]`."""
    q, k, v = split_heads(product(u, layer["qkv"]))
    q = decoder_layer.rms(q, layer["q_norm"], c.norm_eps)
    k = decoder_layer.rms(k, layer["k_norm"], c.norm_eps)
    cos, sin = rotations(c, positions, c.max_positions)[0]
    q = rotate(q, cos[:, :, None, None], sin[:, :, None, None])
    k = rotate(k, cos[:, :, None], sin[:, :, None])
    return q * c.head_dim**-0.5, k, v


def left(layer: Params, c: Config, x: Array, out: Array, kernel: Array | None) -> Array:
    """Add attention's output of the slots to x [..., W, D], and run the MLP."""
    y = product(out, layer["out"])
    y = y if kernel is None else convolved(kernel, y)
    return feed_forward(layer, c, x + y)


def cache(layers: Sequence[Params], batch: int, size: int) -> kv_cache.KVCache:
    """Make an empty cache, in the dtype of the weights."""
    _, groups, _, dim = layers[0]["qkv"].shape
    dtype = layers[0]["qkv"].dtype
    return kv_cache.dense(len(layers), batch, size, groups, dim, dtype)


def read(
    layers: Sequence[Params],
    c: Config,
    cache: kv_cache.KVCache,
    features: Array,
    nodes: base.Block,
) -> kv_cache.KVCache:
    """Append the keys of features [B, N, D] of the text at the slots of `nodes`."""
    cache = cache.open(nodes)
    stores = tuple(
        store.append(nodes.slots, *keys(layer, c, features, nodes.positions))
        for layer, store in zip(layers, cache.layers)
    )
    return replace(cache, layers=stores)


def block(
    layers: Sequence[Params],
    c: Config,
    cache: kv_cache.KVCache,
    x: Array,
    start: Array,
    causal: Sequence[bool],
    before_anchor: bool = False,
) -> tuple[Array, kv_cache.KVCache]:
    """Run a block of slots behind the text.

    Args:
        layers: their params.
        c: their config.
        cache: of the text's features; the block's keys go past its `length`.
        x: [B, W, D], the slots' inputs.
        start: int32[B], the position of the first slot.
        causal: of each layer, whether a slot sees those behind it no more.
        before_anchor: windows are of the tokens before the first slot, for all slots.

    Returns:
        The last layer's output [B, W, D], and the cache.
    """
    batch, width = x.shape[:2]
    index = jnp.arange(width, dtype=jnp.int32)
    own = {
        True: jnp.tril(jnp.ones((width, width), bool)),
        False: jnp.ones((width,) * 2),
    }
    blocks, attention = {}, {}
    for flag in set(causal):
        bits = base.pack_bits(own[flag].astype(bool))
        seen = base.Visibility(
            cache.length, jnp.broadcast_to(bits, (batch, *bits.shape))
        )
        blocks[flag] = base.Block(
            jnp.zeros((batch, width), jnp.int32),
            start[:, None] + index,
            cache.length[:, None] + index,
            seen,
        )
    nodes = blocks[causal[0]]
    cache = cache.open(nodes)
    for flag, of in blocks.items():
        near = c
        if before_anchor:  # distances are the first slot's, which is not of the window
            at = jnp.broadcast_to(start[:, None], (batch, width))
            of = replace(of, positions=at)
            near = replace(c, windows=tuple(w + bool(w) for w in c.windows))
        attention[flag] = cached_attention.over_cache(near, of, cache, AUTO)
    stores = []
    for i, layer in enumerate(layers):
        u, kernel = entered(layer, c, x)
        q, k, v = project(layer, c, u, nodes.positions)
        store = cache.layers[i].append(nodes.slots, k, v)
        x = left(layer, c, x, attention[causal[i]](i)(q, store), kernel)
        stores.append(store)
    return x, replace(cache, layers=tuple(stores))


def at_anchors(
    layers: Sequence[Params],
    c: Config,
    features: Array,
    x: Array,
    anchors: Array,
    causal: Sequence[bool],
    segments: Array | None = None,
    before_anchor: bool = False,
) -> Array:
    """Run a block at every anchor of whole texts, for training.

    The block at anchor a sees the features of positions below a, of its document; the
    feature at a itself does not exist yet when the block is drafted. Blocks do not see
    each other.

    Args:
        layers: their params.
        c: their config.
        features: [B, T, D].
        x: [B, A, W, D], the slots' inputs.
        anchors: int32[B, A], of the positions 0 .. T - 1.
        causal: of each layer, whether a slot sees those behind it no more.
        segments: int32[B, T], keeps packed documents apart.
        before_anchor: as in `block`.

    Returns:
        The last layer's output [B, A, W, D].
    """
    batch, count, width, dim = x.shape
    length = features.shape[1]
    at = sequence_forward.places((batch, length), segments)
    place = jnp.take_along_axis(at, anchors, 1)
    slots = place[..., None] + jnp.arange(width, dtype=jnp.int32)
    seen = jnp.arange(length) < anchors[..., None]
    if segments is not None:
        own = jnp.take_along_axis(segments, anchors, 1)
        seen = seen & (segments[:, None] == own[..., None])
    flat = slots.reshape(batch, -1)

    def step(layer: Params, x: Array, i: int) -> Array:
        u, kernel = entered(layer, c, x)
        q, k, v = project(layer, c, u.reshape(batch, -1, dim), flat)
        split = lambda y: y.reshape(batch, count, width, *y.shape[2:])
        q, k, v = split(q), split(k), split(v)
        text_k, text_v = keys(layer, c, features, at)
        past = jnp.einsum("bawgrd,btgd->bgrawt", q, text_k)
        drafted = jnp.einsum("bawgrd,bavgd->bgrawv", q, k).astype(jnp.float32)
        visible = jnp.broadcast_to(seen[:, :, None], (batch, count, width, length))
        if c.window(i):
            ends = place[..., None] - 1 if before_anchor else slots
            near = ends[..., None] - at[:, None, None] < c.window(i)
            visible = visible & near
        past = jnp.where(visible[:, None, None], past.astype(jnp.float32), NEGATIVE)
        if causal[i]:
            drafted = jnp.where(
                jnp.tril(jnp.ones((width, width), bool)), drafted, NEGATIVE
            )
        p = jax.nn.softmax(jnp.concatenate([past, drafted], -1), -1).astype(v.dtype)
        out = jnp.einsum("bgrawt,btgd->bawgrd", p[..., :length], text_v)
        out = out + jnp.einsum("bgrawv,bavgd->bawgrd", p[..., length:], v)
        return left(layer, c, x, out.reshape(batch, count, width, -1), kernel)

    run = rematerialisation.remat(step, static=(2,))
    for i, layer in enumerate(layers):
        x = run(layer, x, i)
    return x


def _within(width: int, causal: bool) -> Array:
    """Return which slots of its block a slot sees, bool[W, W]."""
    every = jnp.ones((width, width), bool)
    return jnp.tril(every) if causal else every
