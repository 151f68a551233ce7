"""EAGLE's draft: one decoder layer that continues the target's own features.

Li, Wei, Zhang, Zhang, *EAGLE: Speculative Sampling Requires Rethinking Feature
Uncertainty*, 2024, arXiv 2401.15077, section 4.1. With f_t the target's last normed
state and e its embedding,

    f^_{t+1} = Layer(fc [e(x_{t+1}) ; f_t]),    law of x_{t+2} = softmax(W_lm f^_{t+1})

The token is one step ahead of the feature, and so selects one of the possible next
features. The layer has no norm before its attention and none after its output: f^ takes
the place of the *normed* feature. fc → `fuse` [2, D, D], the embedding's half first,
and `bias` [D]; the target's embedding and head stay frozen. Published heads keep the
RoPE of their own config.json (`rope_theta`); those trained here have the target's.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    bias: bool = True  # of fc
    rope_theta: float = head_config.unseen(0.0)  # of the layer; 0: the target's RoPE


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig("bias" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(key: Array, config, bias: bool = True) -> Params:
    """Draw float32 params of the layer and fc."""
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 2)
    dim = config.d_model
    params: Params = {
        "fuse": decoder_layer.normal(keys[0], (2, dim, dim), 2 * dim),
        "layer": decoder_layer.init_layer(keys[1], c),
        head_config.CONFIG: HeadConfig(bias),
    }
    if bias:
        params["bias"] = jnp.zeros(dim)
    return params


def shape(params: Params, target):
    """Return the config of the layer."""
    return decoder_layer.of(params["layer"], target, config_of(params).rope_theta)


def fuse(params: Params, embedded: Array, feature: Array) -> Array:
    """Compute fc [e ; f] [..., D]; the params may be of another head with this fc."""
    u = decoder_layer.joint(jnp.stack([embedded, feature], -2), params["fuse"])
    return u + params["bias"] if config_of(params).bias else u


def sequence(
    params: Params,
    target,
    embedded: Array,
    features: Array,
    segments: Array | None = None,
) -> Array:
    """Compute f^ [B, T, D]; `embedded[t]` is of token t + 1 and `features[t]` is f_t.

    `segments` int32[B, T] keeps packed documents apart.
    """
    layer = params["layer"]
    u = fuse(params, embedded, features)
    return decoder_layer.sequence(layer, shape(params, target), u, u, segments)


def unroll(
    params: Params,
    target,
    embedded: Array,
    features: Array,
    steps,
    each,
    segments: Array | None = None,
):
    """Compute f^ of `steps` steps on the draft's own features.

    Arguments and result are those of `decoder_layer.unroll`.
    """

    def read(embedded: Array, features: Array) -> tuple[Array, Array]:
        u = fuse(params, embedded, features)
        return u, u

    layer = params["layer"]
    c = shape(params, target)
    return decoder_layer.unroll(
        layer, c, read, embedded, features, steps, each, segments=segments
    )


def block(params: Params, target, cache, embedded: Array, features: Array, nodes):
    """Compute f^ [B, N, D] of a block of pairs, and the cache with its keys."""
    layer = params["layer"]
    u = fuse(params, embedded, features)
    return decoder_layer.block(layer, shape(params, target), cache, u, u, nodes)


def check(params: Params, target) -> None:
    decoder_layer.check("EAGLE", target, params["fuse"].shape[-1])
