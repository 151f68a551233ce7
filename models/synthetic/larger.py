"""A model that costs as much as a larger one, and writes the texts that it wrote.

Weights are added whose result is multiplied by zero: a gated MLP of `LAYERS` layers
after the last one. So real drafts, heads and acceptance can be timed beside the call of
a target of any size. The added layers attend to nothing, which a larger model would do
too, and prefill skips most of them: compare the times of rounds at short contexts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import base
from models.errors import ConfigError

LAYERS = 8
WIDTH = 512  # of the added layers' states


@dataclasses.dataclass(frozen=True)
class Config:
    """The config of a model, with the number of parameters that it costs."""

    config: Any
    parameters: int

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "config"), name)


def count(params: Any) -> int:
    """Return the number of parameters."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def params(like: base.LanguageModel, weights: dict, parameters: int) -> dict:
    """Return `weights` with random ones beside them, `parameters` in all.

    Raises:
        ConfigError: the model has so many without that no layer can be added.
    """
    width = like.config.d_model
    missing = parameters - count(weights) - 2 * width * WIDTH - 1
    hidden = missing // (3 * WIDTH * LAYERS)
    if hidden < 1:
        raise ConfigError(
            f"larger={parameters}: the model has {count(weights)} parameters: use some "
            "millions more"
        )
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 0.02, shape).astype(np.float32))

    layers = [
        {
            "gate": matrix(WIDTH, hidden),
            "up": matrix(WIDTH, hidden),
            "down": matrix(hidden, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    ends = {"enter": matrix(width, WIDTH), "leave": matrix(WIDTH, width)}
    # A param and not a constant: the compiler would leave the product out.
    return {**weights, "added": {**ends, "layers": layers, "zero": jnp.float32(0)}}


def language_model(like: base.LanguageModel, parameters: int) -> base.LanguageModel:
    """Return `like` with the layers of `params` in front of its final norm."""

    def norm(params: Any, x: jax.Array) -> jax.Array:
        added = params["added"]
        y = x @ added["enter"]
        for layer in added["layers"]:
            y = y + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
        return like.norm(params, x + added["zero"] * (y @ added["leave"]))

    return like._replace(config=Config(like.config, parameters), norm=norm)
