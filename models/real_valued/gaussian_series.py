"""Autoregressive models of real-valued tokens: Gaussian steps on a window's state.

The law of the next token x_0 in R^D after a window of W tokens, with h = MLP of the
window's differences:

    x_K ~ N(0, I);   x_{k-1} ~ N(m(x_k, k, h), diag s(x_k, k, h)^2),   k = K .. 1

and the token is the window's last one plus x_0. K = 1 is a Gaussian head, which reads
no x_1. K > 1 is a denoising chain, whose last step alone is drawn from a `Gaussian`
that is returned: its mean and deviation are functions of the window and of the noise
of the steps before it, the *trajectory*. The Gaussian steps are those of Ho, Jain,
Abbeel, *Denoising Diffusion Probabilistic Models*, 2020, arXiv 2006.11239, with a
learned deviation. Training adds noise by `signal`: a_0 = 1, a_K = 0,
a_k = cos^2(pi k / 2 K).

K → `steps`; W → `window`; D → `dim`. There is no cache: W is small, and all windows of
a block run as rows of one product.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from models.errors import ConfigError

SMALLEST, LARGEST = -7.0, 4.0  # log-deviations


@struct.dataclass
class Gaussian:
    """A normal law with independent coordinates; any leading axes."""

    mean: Array  # float32[..., D]
    deviation: Array  # float32[..., D], positive


@dataclass(frozen=True)
class Config:
    """The shape of a model, see the module's docstring."""

    window: int
    width: int
    layers: int = 2
    steps: int = 1
    dim: int = 1

    def __post_init__(self) -> None:
        least = {"window": 2, "width": 1, "layers": 1, "steps": 1, "dim": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name}={getattr(self, name)}: use at least {bound}")


class Model(NamedTuple):
    """The functions of a model.

    - `init(key) -> params`.
    - `step(params, window[..., W, D], x[..., D], k) -> Gaussian` of x_{k-1}, without
      the window's last token. `x` is not read where K = 1.
    - `law(params, window[..., W, D], noise[..., K, D]) -> Gaussian` of the next token,
      given the standard normal noise of its trajectory: x_K, then one a step but the
      last. Not read where K = 1.
    """

    config: Config
    init: Callable[[Array], Any]
    step: Callable[..., Gaussian]
    law: Callable[[Any, Array, Array], Gaussian]


class Trunk(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, window: Array) -> Array:
        h = jnp.diff(window, axis=-2)
        h = h.reshape(*h.shape[:-2], -1)
        for _ in range(self.config.layers):
            h = jnp.tanh(nn.Dense(self.config.width)(h))
        return h


class Head(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, h: Array, x: Array, k: int) -> Gaussian:
        c = self.config
        if c.steps > 1:
            which = jax.nn.one_hot(k - 1, c.steps)
            which = jnp.broadcast_to(which, (*x.shape[:-1], c.steps))
            x = nn.Dense(c.width)(jnp.concatenate([h, x, which], -1))
            h = h + jnp.tanh(x)
        out = nn.Dense(2 * c.dim)(h)
        mean, scale = jnp.split(out, 2, -1)
        return Gaussian(mean, jnp.exp(jnp.clip(scale, SMALLEST, LARGEST)))


class Network(nn.Module):
    config: Config

    def setup(self) -> None:
        self.trunk = Trunk(self.config)
        self.head = Head(self.config)

    def __call__(self, window: Array, x: Array, k: int) -> Gaussian:
        return self.head(self.trunk(window), x, k)

    def law(self, window: Array, noise: Array) -> Gaussian:
        h = self.trunk(window)
        x = noise[..., 0, :]
        steps = self.config.steps
        for k in range(steps, 1, -1):
            drawn = self.head(h, x, k)
            x = drawn.mean + drawn.deviation * noise[..., steps + 1 - k, :]
        last = self.head(h, x, 1)
        return Gaussian(window[..., -1, :] + last.mean, last.deviation)


def model(config: Config) -> Model:
    """Build the functions of a model."""
    network = Network(config)

    def init(key: Array) -> Any:
        window = jnp.zeros((config.window, config.dim))
        return network.init(key, window, jnp.zeros(config.dim), 1)

    def law(params: Any, window: Array, noise: Array) -> Gaussian:
        found: Any = network.apply(params, window, noise, method=Network.law)
        return found

    step: Any = network.apply  # flax types what a module returns as Any or a tuple
    return Model(config, init, step, law)


def signal(steps: int) -> list[float]:
    """List a_0 .. a_K: the share of the data in the variance of x_0 .. x_K."""
    return [math.cos(math.pi * k / (2 * steps)) ** 2 for k in range(steps)] + [0.0]
