"""A filter of guesses: which tokens of a block already are those of the final text.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. From the model's
confidences c in the W positions of a block, 1 where a token is known,

    f(c) = W2 relu(W1 c + b1) + b2        float32[W], log-odds

W1 → `hidden.weight` [W, H], b1 → `hidden.bias` [H], W2 → `out.weight` [H, W], b2 →
`out.bias` [W]; `[in, out]`.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params

NAMES = ("hidden", "out")


def init(key: Array, block: int = 32, hidden: int = 32) -> Params:
    """Draw params for blocks of `block` positions."""
    keys = jax.random.split(key)
    return {
        "hidden": {
            "weight": decoder_layer.normal(keys[0], (block, hidden), block),
            "bias": jnp.zeros((hidden,)),
        },
        "out": {
            "weight": decoder_layer.normal(keys[1], (hidden, block), hidden),
            "bias": jnp.zeros((block,)),
        },
    }


def log_odds(params: Params, conf: Array) -> Array:
    """Compute f, float32[..., W], from confidences [..., W]."""
    x = conf.astype(jnp.float32)
    x = x @ params["hidden"]["weight"].astype(jnp.float32) + params["hidden"]["bias"]
    x = jax.nn.relu(x) @ params["out"]["weight"].astype(jnp.float32)
    return x + params["out"]["bias"]


def block_of(params: Params) -> int:
    """Return W, the positions of the blocks that a filter is for.

    Raises:
        ConfigError: params of something else.
    """
    if set(params) != set(NAMES):
        raise ConfigError(
            f"a filter has the params {NAMES}, these are {sorted(params)}: pass what "
            "training.runs.unmask_filter_run exported"
        )
    return params["out"]["weight"].shape[1]
