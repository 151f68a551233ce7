"""A linear judge of the target's state at a drafted token (judge decoding).

Bachmann et al., *Judge Decoding*, 2025, arXiv 2501.19309, section 4: sigma(w . h + b),
in float32. w → `weight` [D], b → `bias` []; everything else stays frozen.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules.decoder_layer import Params


def init(width: int) -> Params:
    """Initialise a judge that gives 1/2 everywhere."""
    return {"weight": jnp.zeros((width,)), "bias": jnp.zeros(())}


def logit(params: Params, states: Array) -> Array:
    """Compute the log-odds, float32[...], that drafts at states [..., D] are good."""
    weight = params["weight"].astype(jnp.float32)
    return states.astype(jnp.float32) @ weight + params["bias"]


def probability(params: Params, states: Array) -> Array:
    """Compute the probability, float32[...], that drafts at `states` are good."""
    return jax.nn.sigmoid(logit(params, states))


def check(params: Params) -> None:
    """Refuse params of another head."""
    if set(params) != {"weight", "bias"}:
        raise ConfigError(
            f"a judge has the params bias and weight, these are {sorted(params)}: pass "
            "what training.runs.judge_run exported"
        )
