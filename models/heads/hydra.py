"""Hydra's heads: each also reads the tokens drafted before it.

Ankner, Parthasarathy, Nrusimha, Rinard, Ragan-Kelley, Brandon, *Hydra: Sequentially-
Dependent Draft Heads for Medusa Decoding*, 2024, arXiv 2402.05109, sections 3 and 4.
Head i (from 0) predicts token t + 2 + i from

    u = [g_t ; e(x_{t+1}) ; ... ; e(x_{t+1+i})]
    z = R_i u + r_i + SiLU(W_i u + w_i);   z = z + SiLU(A_i z + a_i)  L - 1 times
    logits = z U_i + c_i

g is the target's last normed state h (Hydra), or the output of one decoder layer over
the h of the whole text (Hydra++'s prefix attention). e is the target's embedding.
R, W → `skip`, `mix` [i + 2, D, D], one matrix an input; A → `res` [D, D], the same in
all L - 1 blocks.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    prefix: bool = False  # Hydra++'s layer
    deep: bool = False  # whether heads have weights of further blocks


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig("prefix" in params, "res" in params["head_0"])


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(
    key: Array,
    config,
    output: Array,
    heads: int = 4,
    prefix: bool = False,
    deep: bool = False,
) -> Params:
    """Initialise float32 params of `heads` heads; `output` [V, D]: the target's head.

    `prefix` adds the decoder layer, `deep` the weights of the further blocks.
    """
    dim = config.d_model
    keys = jax.random.split(key, heads + 1)
    params: Params = {head_config.CONFIG: HeadConfig(prefix, deep)}
    for i in range(heads):
        inputs = i + 2
        # The state passes at first, as through Medusa's head.
        skip = jnp.zeros((inputs, dim, dim)).at[0].set(jnp.eye(dim))
        small = decoder_layer.normal(keys[i], (inputs - 1, dim, dim), inputs * dim)
        params[f"head_{i}"] = {
            "skip": skip.at[1:].set(0.5 * small),
            "skip_bias": jnp.zeros(dim),
            "mix": jnp.zeros((inputs, dim, dim)),
            "mix_bias": jnp.zeros(dim),
            "head": output.astype(jnp.float32),
            "head_bias": jnp.zeros(output.shape[0]),
        }
        if deep:
            params[f"head_{i}"]["res"] = jnp.zeros((dim, dim))
            params[f"head_{i}"]["res_bias"] = jnp.zeros(dim)
    if prefix:
        c = decoder_layer.geometry(config)
        params["prefix"] = {
            **decoder_layer.init_layer(keys[-1], c),
            "input_norm": jnp.ones(dim),
            "final_norm": jnp.ones(dim),
        }
    return params


def count(params: Params) -> int:
    return sum(name.startswith("head_") for name in params)


def inputs(params: Params, i: int, u: Array) -> tuple[Array, Array]:
    """Compute R u and W u [..., D] of head i; `u` is [..., i + 2, D]."""
    head = params[f"head_{i}"]
    joint = decoder_layer.joint
    return joint(u, head["skip"]), joint(u, head["mix"])


def logits(params: Params, i: int, u: Array, blocks: int = 4, drop=None) -> Array:
    """Compute float32[..., V] of head i from `u` [..., i + 2, D].

    `blocks` is L. `drop(j, x)` applies dropout in training to the input x of block j;
    the output rows are block L.
    """
    head: dict[str, Any] = params[f"head_{i}"]
    drop = drop or (lambda block, x: x)
    skip, mix = inputs(params, i, drop(0, u))
    z = skip + head["skip_bias"] + jax.nn.silu(mix + head["mix_bias"])
    z = decoder_layer.summed(z)
    if config_of(params).deep:
        for j in range(1, blocks):
            z = drop(j, z)
            inner = decoder_layer.summed(z @ head["res"])
            z = decoder_layer.summed(z + jax.nn.silu(inner + head["res_bias"]))
    scores = drop(blocks, z) @ head["head"].T + head["head_bias"]
    return scores.astype(jnp.float32)


def prefix_sequence(
    params: Params, target, hidden: Array, segments: Array | None = None
) -> Array:
    """Compute g [B, T, D] from the states h [B, T, D] of whole sequences.

    `segments` int32[B, T] keeps packed documents apart.
    """
    layer = params["prefix"]
    c = decoder_layer.of(layer, target)
    x = decoder_layer.rms(hidden, layer["input_norm"], c.norm_eps)
    x = decoder_layer.sequence(layer, c, x, hidden, segments)
    return decoder_layer.rms(x, layer["final_norm"], c.norm_eps)


def prefix_block(params: Params, target, cache, hidden: Array, nodes) -> tuple:
    """Compute g [B, N, D] of a causal block of states, and the cache with its keys."""
    layer = params["prefix"]
    c = decoder_layer.of(layer, target)
    x = decoder_layer.rms(hidden, layer["input_norm"], c.norm_eps)
    x, cache = decoder_layer.block(layer, c, cache, x, hidden, nodes)
    return decoder_layer.rms(x, layer["final_norm"], c.norm_eps), cache


def check(params: Params, target) -> None:
    vocab, width = params["head_0"]["head"].shape
    decoder_layer.check("Hydra", target, width, vocab)
