"""A head that says how likely a drafted token is to be accepted (SpecDec++).

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2024, arXiv 2405.19715, section 3.3. With x the draft model's last normed
state where it has read the token,

    x <- x + silu(W x + b)    `blocks` times, with the same W, b
    a = softmax(U x + c)_1

in float32. W → `block.weight` [D, D], b → `block.bias` [D], U → `out.weight` [D, 2],
c → `out.bias` [2]; `[in, out]`. The released heads are the same by other names.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params

NAMES = ("block", "out")


def init(key: Array, width: int) -> Params:
    """Random params for states of `width`; none is zero, as in the official code."""
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
    """log a and log (1 - a), float32[...], of states [..., D]."""
    x = states.astype(jnp.float32)
    weight, bias = params["block"]["weight"], params["block"]["bias"]
    for _ in range(blocks):
        x = x + jax.nn.silu(x @ weight.astype(jnp.float32) + bias)
    two = x @ params["out"]["weight"].astype(jnp.float32) + params["out"]["bias"]
    both = jax.nn.log_softmax(two, -1)
    return both[..., 1], both[..., 0]


def probability(params: Params, states: Array, blocks: int) -> Array:
    """a, float32[...]."""
    return jnp.exp(log_odds(params, states, blocks)[0])


def check(params: Params, width: int | None = None) -> None:
    """Refuse params of another head, or for states of another width."""
    if set(params) != set(NAMES):
        raise ConfigError(
            f"an acceptance head has the params {NAMES}, these are {sorted(params)}: "
            "pass what training.runs.acceptance_run exported"
        )
    own = params["out"]["weight"].shape[0]
    if width is not None and width != own:
        raise ConfigError(
            f"the acceptance head is for states of width {own}, the draft's have "
            f"{width}: use the draft that it was trained on"
        )
