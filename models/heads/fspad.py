"""FSPAD's draft: EAGLE's layer on sampled features, with one output for each purpose.

Gui, Xiao, Su, Chen, *Boosting Lossless Speculative Decoding via Feature Sampling and
Partial Alignment Distillation*, 2024, arXiv 2408.15562, sections 3.1 and 3.2. With f_t
the target's last normed state and e its embedding,

    u = fc [e(x_{t+1}) ; f_t]
    u = u + S_down (SiLU(S_gate e(x_{t+1})) * S_up norm_s(u))        feature sampling
    r = u + Attention(u);    [a ; f^_{t+1}] = [r ; r] + MLP(r)       two halves of 2 D
    law of x_{t+2} = softmax(W_lm a),    f^ takes the place of f in the next step

The token selects among the next features that f leaves open, so it gates the feature,
where EAGLE only adds it. f^ trains on the target's features, a on its laws. fc →
`fuse`, `bias`; S → `sample`; the layer's `down` is [F, 2 D].
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.heads import eagle
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params


def init(key: Array, config, bias: bool = True) -> Params:
    """Draw float32 params; the sampling MLP is as wide as the target's."""
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 5)
    dim, wide = c.d_model, c.d_ff
    params = eagle.init(keys[0], config, bias)
    down = decoder_layer.normal(keys[1], (wide, 2 * dim), 2 * wide)
    return {
        **params,
        "layer": {**params["layer"], "down": down},
        "sample": {
            "norm": jnp.ones(dim),
            "gate": decoder_layer.normal(keys[2], (dim, wide), dim),
            "up": decoder_layer.normal(keys[3], (dim, wide), dim),
            "down": decoder_layer.normal(keys[4], (wide, dim), 2 * wide),
        },
    }


def inputs(params: Params, embedded: Array, feature: Array, eps: float) -> Array:
    """Compute u [..., D], the sampled feature."""
    u, sample = eagle.fuse(params, embedded, feature), params["sample"]
    gate = jax.nn.silu(embedded @ sample["gate"])
    up = decoder_layer.rms(u, sample["norm"], eps) @ sample["up"]
    return u + (gate * up) @ sample["down"]


def halves(output: Array) -> tuple[Array, Array]:
    """Split outputs [..., 2 D] into a and f^, [..., D] each."""
    dim = output.shape[-1] // 2
    return output[..., :dim], output[..., dim:]


def both(feature: Array) -> Array:
    """Repeat a feature [..., D] to [..., 2 D], in place of an output."""
    return jnp.concatenate([feature, feature], -1)


def sequence(
    params: Params,
    target,
    embedded: Array,
    features: Array,
    segments: Array | None = None,
) -> Array:
    """Compute outputs [B, T, 2 D] from e(x_{t+1}) and f_t, both [B, T, D] at t.

    `segments` int32[B, T] keeps packed documents apart.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    u = inputs(params, embedded, features, c.norm_eps)
    return decoder_layer.sequence(layer, c, u, u, segments)


def unroll(
    params: Params,
    target,
    embedded: Array,
    features: Array,
    steps,
    each,
    segments: Array | None = None,
):
    """Compute the outputs of `steps` steps on the draft's own features.

    Arguments and result are those of `decoder_layer.unroll`.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)

    def read(embedded: Array, output: Array) -> tuple[Array, Array]:
        u = inputs(params, embedded, halves(output)[1], c.norm_eps)
        return u, u

    first = both(features)
    return decoder_layer.unroll(
        layer, c, read, embedded, first, steps, each, segments=segments
    )


def block(params: Params, target, cache, embedded: Array, features: Array, nodes):
    """Compute outputs [B, N, 2 D] of a block of pairs, and the cache with its keys."""
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    u = inputs(params, embedded, features, c.norm_eps)
    return decoder_layer.block(layer, c, cache, u, u, nodes)


def check(params: Params, target) -> None:
    decoder_layer.check("FSPAD", target, params["fuse"].shape[-1])
