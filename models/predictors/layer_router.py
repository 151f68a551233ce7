"""Routers, one a layer: whether a token needs the layer (FiRST).

Jain, Sharma, Mukherjee, Pal, *FiRST: Finetuning Router-Selective Transformers for
Input-Adaptive Latency Reduction*, 2025, arXiv 2410.12513. With h the state that enters
layer l,

    g_l = sigmoid(w_l . h + b_l)

in float32. w_l → `weight` [L, D], b_l → `bias` [L]: D + 1 numbers a layer. At first
w = 0 and b = +2, so that every layer counts for 0.88.
"""

from collections.abc import Collection

import jax.numpy as jnp
import numpy as np
from jax import Array

from models.errors import ConfigError
from models.heads.modules.decoder_layer import Params

NAMES = ("bias", "weight")
BIAS = 2.0  # of an untrained router
SURE = 1e4  # log-odds of a certain vote


def init(n_layers: int, d_model: int, bias: float = BIAS) -> Params:
    """Make float32 params for a target of `n_layers` and width `d_model` (D)."""
    return {
        "weight": jnp.zeros((n_layers, d_model)),
        "bias": jnp.full((n_layers,), bias, jnp.float32),
    }


def fixed(n_layers: int, d_model: int, layers: Collection[int]) -> Params:
    """Make routers that keep the `layers`, from 0, for every token, and no other."""
    wrong = [layer for layer in layers if not 0 <= layer < n_layers]
    if wrong:
        raise ConfigError(
            f"layers={sorted(layers)} of a target of {n_layers} layers: use 0 to "
            f"{n_layers - 1}"
        )
    is_kept = np.isin(np.arange(n_layers), list(layers))
    bias = jnp.where(is_kept, SURE, -SURE)
    return {**init(n_layers, d_model), "bias": bias.astype(jnp.float32)}


def log_odds(params: Params, layer: int, h: Array) -> Array:
    """Compute the log-odds of g_l, float32[...], from h [..., D]."""
    weight, bias = params["weight"][layer], params["bias"][layer]
    # A sum in float32 whatever the params' dtype: votes are compared with a threshold.
    h = h.astype(jnp.float32)
    return (h * weight.astype(jnp.float32)).sum(-1) + bias.astype(jnp.float32)


def check(params: Params, n_layers: int, d_model: int) -> None:
    """Refuse params of another predictor, or for a target of another shape."""
    if set(params) != set(NAMES):
        raise ConfigError(
            f"layer routers have the params {NAMES}, these are {sorted(params)}: pass "
            "what training.runs.layer_router_run exported"
        )
    shape = tuple(params["weight"].shape)
    if shape != (n_layers, d_model):
        raise ConfigError(
            f"there are routers for {shape[0]} layers of width {shape[1]} and the "
            f"target has {n_layers} of {d_model}: use routers that were trained for it"
        )
