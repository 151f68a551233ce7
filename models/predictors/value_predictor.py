"""A value head: one number of a hidden state, linear and in float32.

    v = w . h + b

w → `weight` [D], b → `bias` [].
"""

import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params

NAMES = ("weight", "bias")


def init(key: Array, width: int) -> Params:
    """Draw params for states of `width`."""
    weight = decoder_layer.normal(key, (width,), width)
    return {"weight": weight, "bias": jnp.zeros(())}


def value(params: Params, states: Array) -> Array:
    """Compute v, float32[...], from states [..., D]."""
    weight = params["weight"].astype(jnp.float32)
    # A sum, whose order does not depend on the batch, as a product's may.
    product = (states.astype(jnp.float32) * weight).sum(-1)
    return product + params["bias"].astype(jnp.float32)


def check(params: Params, width: int) -> None:
    """Refuse params of another head, or for states of another width."""
    if not isinstance(params, dict) or set(params) != set(NAMES):
        names = sorted(params) if isinstance(params, dict) else type(params).__name__
        raise ConfigError(f"a value head has the params {NAMES}, these are {names}")
    if params["weight"].shape != (width,):
        raise ConfigError(
            f"the value head is for states of width {params['weight'].shape}, the "
            f"target's have {width}: use the target that it was trained on"
        )
