"""A head that predicts the probability that a drafted token is accepted (SpecDec++).

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2025, arXiv 2405.19715, section 3.3. With x the draft model's last normed
state at the drafted token,

    x <- x + silu(W x + b)    `blocks` times, with the same W, b
    a = softmax(U x + c)_1

in float32. W → `block.weight` [D, D], b → `block.bias` [D], U → `out.weight` [D, 2],
c → `out.bias` [2]; `[in, out]`. The released heads differ only in names.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params

NAMES = ("block", "out")


def init(key: Array, width: int) -> Params:
    """Draw params for states of `width`; no weight is zero, as in the official code."""
    keys = jax.random.split(key)
    return {
        "block": {
            "weight": decoder_layer.normal(keys[0], (width, width), width),
            "bias": jnp.zeros((width,)),
        },
        "out": {
            "weight": decoder_layer.normal(keys[1], (width, 2), width),
            "bias": jnp.zeros((2,)),
        },
    }


def log_odds(params: Params, states: Array, blocks: int) -> tuple[Array, Array]:
    """Compute log a and log (1 - a), float32[...], from states [..., D]."""
    x = states.astype(jnp.float32)
    weight, bias = params["block"]["weight"], params["block"]["bias"]
    for _ in range(blocks):
        x = x + jax.nn.silu(x @ weight.astype(jnp.float32) + bias)
    two = x @ params["out"]["weight"].astype(jnp.float32) + params["out"]["bias"]
    both = jax.nn.log_softmax(two, -1)
    return both[..., 1], both[..., 0]


def probability(params: Params, states: Array, blocks: int) -> Array:
    """Compute a, float32[...], from states [..., D]."""
    return jnp.exp(log_odds(params, states, blocks)[0])


def check(params: Params, width: int | None = None) -> None:
    """Refuse params of another head, or for states of another width."""
    if set(params) != set(NAMES):
        raise ConfigError(
            f"an acceptance head has the params {NAMES}, these are {sorted(params)}: "
            "pass what training.runs.acceptance_run exported"
        )
    expected = params["out"]["weight"].shape[0]
    if width is not None and width != expected:
        raise ConfigError(
            f"the acceptance head is for states of width {expected}, the draft's have "
            f"{width}: use the draft that it was trained on"
        )
