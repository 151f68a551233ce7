"""P-EAGLE's draft: EAGLE-3's layers, which guess several tokens in one pass.

Hui et al., *P-EAGLE: Parallel-Drafting EAGLE with Scalable Training*, 2026, arXiv
2602.01469. Pairs and names are those of `models/heads/eagle3.py`. Beside the pair of
depth 0 at t, (x_{t+1}, g_t), stand pairs of depths 1 .. K - 1 made of what is not known
yet:

    c_0 = [norm_e(e(x_{t+1})) ; norm_g(g_t)],     r_0 = g_t
    c_j = [norm_e(m) ; norm_g(fc m_h)],           r_j = fc m_h,    at position t + j
    a   = Layers(c, r);    law of x_{t+2+j} = softmax(W norm(a_j))

A pair of depth 0 sees those before it, one of depth j >= 1 the pairs of depth 0 up to t
and those of depths 1 .. j at t. The first layer reads c, of width 2 D; the others are
plain. m → `mask` [D], m_h → `mask_hidden` [3, D], both trained; fc, norm_e, norm_g, W →
as there; the layers → `layer_0` ..

Published heads train an embedding of their own, and m is its row of a `mask_token`:
`embedding` [V, D] then takes the place of e.

Deviations: heads that are trained here have e of the target, and m beside it.
"""

import dataclasses
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels.dispatch import AUTO
from models import base
from models.cache_layouts import kv_cache
from models.errors import ConfigError
from models.heads import eagle3
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params
from models.transformer import cached_attention, rematerialisation, sequence_forward
from models.transformer.config import Config
from models.transformer.modules import NEGATIVE, product


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    draft_vocabulary: bool = False  # whether there is `kept`
    depths: int = head_config.unseen(8)  # K
    rope_theta: float = head_config.unseen(0.0)  # of the layers; 0: the target's RoPE
    own_embedding: bool = False  # whether there is `embedding`
    mask_token: int = head_config.unseen(-1)  # the token that m stands for in files


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig("kept" in params, own_embedding="embedding" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(
    key: Array,
    config,
    output: Array,
    kept: np.ndarray | None = None,
    layers: int = 4,
    depths: int = 8,
) -> Params:
    """Draw float32 params; the head begins as the target's rows `output` [V, D].

    `kept` int32[V'] is the draft vocabulary, rising; None: the target's.
    """
    if min(layers, depths) < 1:
        raise ConfigError(f"layers={layers}, depths={depths}: use at least 1 of each")
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, layers + 2)
    first = eagle3.init(keys[0], config, output, kept)
    dim = config.d_model
    params: Params = {
        **{n: x for n, x in first.items() if n not in ("layer", head_config.CONFIG)},
        "layer_0": first["layer"],
        "mask": decoder_layer.normal(keys[1], (dim,), dim),
        "mask_hidden": decoder_layer.normal(keys[2], (3, dim), 1),
        head_config.CONFIG: HeadConfig(kept is not None, depths),
    }
    for i in range(1, layers):
        own = decoder_layer.init_layer(keys[i + 2], c)
        params[f"layer_{i}"] = {"input_norm": jnp.ones(dim), **own}
    return params


def layers_of(params: Params) -> list[Params]:
    """Return the layers in their order."""
    count = sum(name.startswith("layer_") for name in params)
    return [params[f"layer_{i}"] for i in range(count)]


def shape(params: Params, target: Any) -> Config:
    """Return the config of the layers."""
    layers = layers_of(params)
    c = decoder_layer.of(layers[0], target, config_of(params).rope_theta)
    return replace(c, n_layers=len(layers))


def embed(params: Params, tokens: Array, theirs: Array) -> Array:
    """Embed tokens int32[...]; `theirs` [..., D] are the target's embeddings."""
    if not config_of(params).own_embedding:
        return theirs
    return params["embedding"][tokens].astype(theirs.dtype)


def inputs(params: Params, embedded: Array, g: Array, eps: float) -> tuple:
    """Compute c [..., 2 D] and r [..., D] of an embedding and g [..., D]."""
    e = decoder_layer.rms(embedded, params["embedding_norm"], eps)
    normed = decoder_layer.rms(g, params["feature_norm"], eps)
    return jnp.concatenate([e, normed], -1), g


def unknown(params: Params, eps: float) -> tuple:
    """Compute c [2 D] and r [D] of the pairs that are not known yet."""
    g = decoder_layer.joint(params["mask_hidden"], params["fuse"])
    return inputs(params, params["mask"], g, eps)


def logits(params: Params, a: Array, eps: float) -> Array:
    """Compute float32[..., V'] over the draft vocabulary."""
    x = decoder_layer.rms(a, params["norm"], eps)
    return (x @ params["head"].T).astype(jnp.float32)


def cache(params: Params, batch: int, size: int) -> kv_cache.KVCache:
    """Make an empty cache of `size` pairs and the pairs of a pass behind them."""
    layers = layers_of(params)
    _, groups, _, dim = layers[0]["qkv"].shape
    room = size + config_of(params).depths
    dtype = layers[0]["qkv"].dtype
    return kv_cache.dense(len(layers), batch, room, groups, dim, dtype)


def block(
    params: Params, target: Any, cache: Any, x: Array, r: Array, nodes: base.Block
) -> tuple[Array, Any]:
    """Compute a [B, N, D] of a block of pairs, and the cache with their keys."""
    layers, c = layers_of(params), shape(params, target)
    cache = cache.open(nodes)
    attention, stores = cached_attention.over_cache(c, nodes, cache, AUTO), []
    for i, layer in enumerate(layers):
        q, k, v = decoder_layer.qkv(layer, c, x, nodes.positions)
        store = cache.layers[i].append(nodes.slots, k, v)
        stores.append(store)
        out = product(attention(i)(q, store), layer["out"])
        r, x = _following(layers, i, c, r + out)
    return r, replace(cache, layers=tuple(stores))


def _following(layers: list[Params], i: int, c: Config, h: Array) -> tuple:
    """Run layer i's MLP on h; return the residual and the next layer's input."""
    r = decoder_layer.feed_forward(layers[i], c, h)
    if i + 1 == len(layers):
        return r, r
    return r, decoder_layer.rms(r, layers[i + 1]["input_norm"], c.norm_eps)


def over_text(
    params: Params,
    target: Any,
    embedded: Array,
    g: Array,
    anchors: Array,
    segments: Array | None = None,
) -> tuple[Array, Array]:
    """Compute a of all pairs of depth 0, and of the further depths at some of them.

    Args:
        params: the head's.
        target: its config.
        embedded: [B, T, D]; at t, of token t + 1.
        g: [B, T, D].
        anchors: int32[B, A], the pairs beside which the further depths stand.
        segments: int32[B, T], keeps packed documents apart.

    Returns:
        [B, T, D] and [B, A, K - 1, D].
    """
    layers, c = layers_of(params), shape(params, target)
    batch, length = g.shape[:2]
    count, depths = anchors.shape[1], config_of(params).depths - 1
    places = sequence_forward.places((batch, length), segments)
    causal = sequence_forward.causal(length, segments)
    causal = jnp.broadcast_to(causal, (batch, length, length))
    take = jax.vmap(lambda row, at: row[at])
    seen = take(causal, anchors)  # as the pair of depth 0 there
    at = take(places, anchors)[..., None] + jnp.arange(1, depths + 1)
    own = jnp.tril(jnp.ones((depths, depths), bool))
    x, r = inputs(params, embedded, g, c.norm_eps)
    y, s = (
        jnp.broadcast_to(z, (batch, count, depths, z.shape[-1]))
        for z in unknown(params, c.norm_eps)
    )

    def step(layer: Params, x: Array, y: Array) -> tuple[Array, Array]:
        q, k, v = decoder_layer.qkv(layer, c, x, places)
        scores = jnp.einsum("btgrd,bsgd->bgrts", q, k).astype(jnp.float32)
        p = jax.nn.softmax(jnp.where(causal[:, None, None], scores, NEGATIVE), -1)
        text = jnp.einsum("bgrts,bsgd->btgrd", p.astype(v.dtype), v)
        flat = y.reshape(batch, count * depths, -1)
        found = decoder_layer.qkv(layer, c, flat, at.reshape(batch, -1))
        q, mine, values = (z.reshape(batch, count, depths, *z.shape[2:]) for z in found)
        past = jnp.einsum("bawgrd,btgd->bgrawt", q, k).astype(jnp.float32)
        past = jnp.where(seen[:, None, None, :, None], past, NEGATIVE)
        drafted = jnp.einsum("bawgrd,bavgd->bgrawv", q, mine).astype(jnp.float32)
        drafted = jnp.where(own, drafted, NEGATIVE)
        p = jax.nn.softmax(jnp.concatenate([past, drafted], -1), -1).astype(v.dtype)
        more = jnp.einsum("bgrawt,btgd->bawgrd", p[..., :length], v)
        more = more + jnp.einsum("bgrawv,bavgd->bawgrd", p[..., length:], values)
        text = product(text.reshape(batch, length, -1), layer["out"])
        more = product(more.reshape(batch, count, depths, -1), layer["out"])
        return text, more

    for i, layer in enumerate(layers):
        text, more = rematerialisation.remat(step)(layer, x, y)
        r, x = _following(layers, i, c, r + text)
        s, y = _following(layers, i, c, s + more)
    return r, s


def check(params: Params, target) -> None:
    small = config_of(params).draft_vocabulary
    vocab = None if small else params["head"].shape[0]
    decoder_layer.check("P-EAGLE", target, params["fuse"].shape[-1], vocab)
