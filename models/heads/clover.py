"""Clover-2's heads: two layers, then a recurrent cell that reads the drafted tokens.

Xiao, Shi, Nie, Yang, Deng, Su, Chen, Cui, *Clover: Regressive Lightweight Speculative
Decoding with Sequential Knowledge*, 2024, arXiv 2405.00263; Xiao, Gui, Su, Chen,
*Clover-2: Accurate Inference for Regressive Lightweight Speculative Decoding*, 2024,
arXiv 2408.00264, as in the official code of the latter. With h_t the target's last
state *before* its norm and e a token's vector,

    s_0 = norm(Layers(cell_0(h_t, e(x_{t+1}))))               the augmenting block
    s_i = cell_1(s_{i-1}, e(x_{t+1+i})),  i >= 1              the regressive connection
    cell(s, e) = s + V e * cos(Q norm(s), K e)     the cosine by attention head
    f_0 = norm_f(A s_0),   f_i = norm_f(B [s_i ; e(x_{t+1+i})])
    law of x_{t+2+i} = softmax(W_lm f_i)

Cells, A and B are the same at every depth i >= 1, so that the draft may go deeper than
in training. Q, K, V → `query`, `key`, `value` [D, H, D / H]; A, B → `first`
[1, D, D], `other` [2, D, D]; the layers → `layer_0`, `layer_1`. e is the row of a
token in the target's LM head, as in the official code: so a state that predicts a token
is near the token's e, and the cosine of Q = K = 1 measures that. Q and K begin at
1 + U(0, 0.01), V in U(0, 0.01), as in the official code.

Deviations: the layers begin as the target's last one by default, which a comment of the
official code names. Its code copies layer `num_hidden_layers` - 1 of its training
configs, which have one layer: the target's first. Recipes at scale do so (`layer` 0).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.distributed import sharding
from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params
from models.transformer.modules import product


def init(
    key: Array, config, target: Any = None, depth: int = 2, layer: int = -1
) -> Params:
    """Initialise params near a head that repeats h.

    All `depth` layers begin as the target's `layer`; -1 is its last. They are random
    without the target's params `target`, or where its layers have other parts than a
    head's.

    Raises:
        ConfigError: a layer that the target has not.
    """
    count = config.n_layers
    if not -count <= layer < count:
        raise ConfigError(
            f"layer={layer} of a target of {count}: use {-count} to {count - 1}"
        )
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 4 + depth)
    dim = config.d_model
    params: Params = {
        "cell_0": _cell(keys[0], c),
        "cell_1": _cell(keys[1], c),
        "norm": jnp.ones(dim),
        "first": _near_one(keys[2], 1, dim),
        "first_bias": jnp.zeros(dim),
        "other": _near_one(keys[3], 2, dim),
        "other_bias": jnp.zeros(dim),
        "head_norm": jnp.ones(dim),
    }
    copied = _layer(config, target, layer % count)
    for i in range(depth):
        fresh = {
            **decoder_layer.init_layer(keys[4 + i], c),
            "input_norm": jnp.ones(dim),
        }
        params[f"layer_{i}"] = copied or fresh
    if copied:
        norm = target["embedding"]["norm"]["scale"] + config.norm_offset
        params["norm"] = params["head_norm"] = jnp.asarray(norm, jnp.float32)
    return params


def _cell(key: Array, c: Any) -> Params:
    """Initialise a cell with Q and K near identity and a small V, which adds little."""
    dim = c.d_model
    heads = c.n_heads if dim % c.n_heads == 0 else 1
    shape = (dim, heads, dim // heads)
    small = jax.random.uniform(key, (3, *shape), maxval=0.01)
    same = jnp.eye(dim).reshape(shape)
    zero = jnp.zeros(shape[1:])
    return {
        "norm": jnp.ones(dim),
        "query": same + small[0],
        "query_bias": zero,
        "key": same + small[1],
        "key_bias": zero,
        "value": small[2],
        "value_bias": zero,
    }


def _near_one(key: Array, inputs: int, dim: int) -> Array:
    """Initialise [inputs, D, D] near a map that passes the first input."""
    small = jax.random.uniform(key, (inputs, dim, dim), maxval=0.01)
    return small.at[0].add(jnp.eye(dim))


def _layer(config: Any, target: Any, number: int) -> Params | None:
    """Return a layer of the target as a head's, if it is a Llama layer."""
    name = f"layer_{number}"
    if target is None or name not in target:
        return None
    plain = (
        config.norm == "rms"
        and config.gated
        and config.activation == "silu"
        and not (config.qkv_bias or config.out_bias or config.mlp_bias)
        and not (config.qk_norm or config.post_norms)
    )
    if not plain:
        return None
    layer = target[name]
    weights = {
        "qkv": layer["attention"]["qkv"],
        "out": layer["attention"]["out"],
        "norm": layer["mlp_norm"]["scale"] + config.norm_offset,
        "up": layer["mlp"]["up"],
        "down": layer["mlp"]["down"],
        "input_norm": layer["attention_norm"]["scale"] + config.norm_offset,
    }
    return {name: jnp.asarray(x, jnp.float32) for name, x in weights.items()}


def cell(params: Params, s: Array, embedded: Array, eps: float) -> Array:
    """Update s [..., D] by a token's embedding [..., D]."""
    q = product(decoder_layer.rms(s, params["norm"], eps), params["query"])
    q, k = q + params["query_bias"], product(embedded, params["key"])
    k = k + params["key_bias"]
    v = product(embedded, params["value"]) + params["value_bias"]

    def length(x: Array) -> Array:
        squares = (x * x).sum(-1, keepdims=True)
        return lax.rsqrt(jnp.maximum(squares, eps * eps))

    cosine = (q * length(q) * k * length(k)).sum(-1, keepdims=True)
    return s + (v * cosine).reshape(s.shape)


def read(target: Params, tokens: Array, embedded: Array) -> Array:
    """Return e [..., D] of `tokens` int32[...]: rows of the LM head in `target`.

    A target whose LM head is tied to its embedding gives `embedded` [..., D].
    """
    rows = target.get("embedding", {}).get("head")
    return embedded if rows is None else sharding.constrain(rows, "vocab -")[tokens]


def depth(params: Params) -> int:
    """Count the layers of the augmenting block."""
    return sum(name.startswith("layer_") for name in params)


def sequence(
    params: Params,
    target,
    embedded: Array,
    hidden: Array,
    segments: Array | None = None,
) -> Array:
    """Compute s_0 [B, T, D]; `embedded[t]` is of token t + 1 and `hidden[t]` is h_t.

    `segments` int32[B, T] keeps packed documents apart.
    """
    c = decoder_layer.of(params["layer_0"], target)
    x = cell(params["cell_0"], hidden, embedded, c.norm_eps)
    for i in range(depth(params)):
        layer = params[f"layer_{i}"]
        inside = decoder_layer.rms(x, layer["input_norm"], c.norm_eps)
        x = decoder_layer.sequence(layer, c, inside, x, segments)
    return decoder_layer.rms(x, params["norm"], c.norm_eps)


def block(params: Params, target, caches, embedded: Array, hidden: Array, nodes):
    """Compute s_0 [B, N, D] of a block of pairs, and the caches with their keys."""
    c = decoder_layer.of(params["layer_0"], target)
    x = cell(params["cell_0"], hidden, embedded, c.norm_eps)
    after = []
    for i, cache in enumerate(caches):
        layer = params[f"layer_{i}"]
        inside = decoder_layer.rms(x, layer["input_norm"], c.norm_eps)
        x, cache = decoder_layer.block(layer, c, cache, inside, x, nodes)
        after.append(cache)
    return decoder_layer.rms(x, params["norm"], c.norm_eps), tuple(after)


def first(params: Params, s: Array, eps: float) -> Array:
    """Compute f_0 [..., D], the input of the target's head."""
    f = s @ params["first"][0] + params["first_bias"]
    return decoder_layer.rms(f, params["head_norm"], eps)


def other(params: Params, s: Array, embedded: Array, eps: float) -> Array:
    """Compute f_i [..., D] of depth i >= 1 from s_i and the embedding of x_{t+1+i}."""
    f = s @ params["other"][0] + embedded @ params["other"][1] + params["other_bias"]
    return decoder_layer.rms(f, params["head_norm"], eps)


def check(params: Params, target) -> None:
    decoder_layer.check("Clover", target, params["norm"].shape[-1])
