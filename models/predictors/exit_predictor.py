"""Predictors, after each layer, of whether its token is the last layer's (SpecEE).

Xu, Pan, Zhou, Chen, Li, Lian, Wu, Dai, *SpecEE: Accelerating Large Language Model
Inference with Speculative Early Exiting*, 2025, arXiv 2504.08850. A draft proposes k
tokens. With z their logits after a layer (final norm and head on the state there), and
s' the s of the predictor evaluated before (0 for the first),

    s = softmax(z),   f = [z ; s ; s - s'],   c = sigmoid(u . relu(W f + b) + a)

in float32, each layer but the last with weights of its own. W → `in.weight`
[L - 1, 3k, H], b → `in.bias` [L - 1, H], u → `out.weight` [L - 1, H], a → `out.bias`
[L - 1]: 7,169 numbers a layer for k = 4 and H = 512. The k tokens are in the order of
the draft's law, which matters.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params

NAMES = ("in", "out")
SURE = 1e4  # log-odds of a certain exit


def init(key: Array, n_layers: int, candidates: int = 4, width: int = 512) -> Params:
    """Draw float32 params for a target of `n_layers`, with `width` hidden units (H)."""
    if n_layers < 2:
        raise ConfigError(
            f"n_layers={n_layers}: the target has no layer before the last to exit "
            "after; choose a deeper target"
        )
    keys, exits, size = jax.random.split(key), n_layers - 1, 3 * candidates
    return {
        "in": {
            "weight": decoder_layer.normal(keys[0], (exits, size, width), size),
            "bias": jnp.zeros((exits, width)),
        },
        "out": {
            "weight": decoder_layer.normal(keys[1], (exits, width), width),
            "bias": jnp.zeros((exits,)),
        },
    }


def after(n_layers: int, candidates: int, layer: int) -> Params:
    """Make predictors that always exit, from `layer` on, counted from 0."""
    zeros = _silent(n_layers, candidates)
    bias = jnp.where(jnp.arange(n_layers - 1) < layer, -SURE, SURE)
    return {**zeros, "out": {**zeros["out"], "bias": bias}}


def sure(n_layers: int, candidates: int, share: float) -> Params:
    """Make predictors that exit where one of the k has more than `share` of s."""
    zeros = _silent(n_layers, candidates)
    weight, one = zeros["in"]["weight"], jnp.arange(candidates)
    return {
        "in": {
            # u . relu(s - share) + a, with a just below 0
            "weight": weight.at[:, candidates + one, one].set(1.0),
            "bias": zeros["in"]["bias"] - share,
        },
        "out": {
            "weight": jnp.full_like(zeros["out"]["weight"], SURE),
            "bias": zeros["out"]["bias"] - 1 / SURE,
        },
    }


def _silent(n_layers: int, candidates: int) -> Params:
    """Make predictors of zeros, with as many hidden units as candidates."""
    shapes = jax.eval_shape(
        lambda key: init(key, n_layers, candidates, candidates), jax.random.key(0)
    )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def counts(params: Params) -> tuple[int, int]:
    """Return the number of layers with an exit, and the number k of candidates."""
    exits, size, _ = params["in"]["weight"].shape
    return exits, size // 3


def features(z: Array, before: Array) -> tuple[Array, Array]:
    """Compute f float32[..., 3k] and s float32[..., k] from z and s' [..., k]."""
    z = z.astype(jnp.float32)
    s = jax.nn.softmax(z, -1)
    return jnp.concatenate([z, s, s - before], -1), s


def log_odds(params: Params, layer: int, given: Array) -> Array:
    """Compute the log-odds of c, float32[...], after `layer + 1` layers.

    `given` is f [..., 3k].
    """
    at = jax.tree.map(lambda x: x[layer].astype(jnp.float32), params)
    hidden = jax.nn.relu(given @ at["in"]["weight"] + at["in"]["bias"])
    return hidden @ at["out"]["weight"] + at["out"]["bias"]


def probability(params: Params, layer: int, given: Array) -> Array:
    """Compute c, float32[...]; arguments as in `log_odds`."""
    return jax.nn.sigmoid(log_odds(params, layer, given))


def check(params: Params, n_layers: int) -> None:
    """Refuse params of another head, or for a target of another depth."""
    if set(params) != set(NAMES):
        raise ConfigError(
            f"exit predictors have the params {NAMES}, these are {sorted(params)}: "
            "pass what training.runs.exit_predictor_run exported"
        )
    exits, _ = counts(params)
    if exits != n_layers - 1:
        raise ConfigError(
            f"there are predictors for {exits} layers and the target has {n_layers}: "
            f"it needs {n_layers - 1}, so use predictors that were trained for it"
        )
