"""Gaussian negative log-likelihood of real-valued tokens, step by step.

For `models/real_valued/gaussian_series.py`. With x_0 the next token less the one before
it, and x_k = sqrt(r_k) x_{k-1} + sqrt(1 - r_k) n, r_k = a_k / a_{k-1}:

    L = sum_k -log N(x_{k-1}; m(x_k, k, h), s(x_k, k, h)^2),      k = 1 .. K

For K = 1, where x_1 is noise that the head does not read, this is the data's own
negative log-likelihood. For K > 1 it is the bound of denoising models (Ho, Jain,
Abbeel, *Denoising Diffusion Probabilistic Models*, 2020, arXiv 2006.11239, equation 3)
up to a constant, with learned deviations.

A batch has `window` float32[B, W, D], `next` float32[B, D], and `noise`
float32[B, K, 2, D], standard normal: of x_{k-1} and of x_k, for each k. Metrics:
`last`, the term of k = 1.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

from models.real_valued import gaussian_series
from models.real_valued.gaussian_series import Gaussian
from training.loop.train_step import Batch, Objective


def nats(law: Gaussian, x: Array) -> Array:
    """Compute -log N(x), float32[...]: the sum over the last axis."""
    z = (x - law.mean) / law.deviation
    return (0.5 * z * z + jnp.log(law.deviation) + 0.5 * math.log(2 * math.pi)).sum(-1)


def objective(model: gaussian_series.Model) -> Objective:
    """Build the loss of a model."""
    steps, share = model.config.steps, gaussian_series.signal(model.config.steps)

    def loss(params: Any, batch: Batch, target_out: Any) -> tuple:
        window, noise = batch["window"], batch["noise"]
        x0 = batch["next"] - window[..., -1, :]
        terms = []
        for k in range(1, steps + 1):
            here = _mix(share[k - 1], x0, noise[..., k - 1, 0, :])
            above = _mix(share[k] / share[k - 1], here, noise[..., k - 1, 1, :])
            terms.append(nats(model.step(params, window, above, k), here).mean())
        return sum(terms), {"last": terms[0]}

    words = "nats a token" if steps == 1 else f"sum over {steps} steps, nats a token"
    weight = lambda batch: batch["next"].shape[0]
    return Objective(loss, weight, quantity=lambda params: words)


def _mix(share: float, x: Array, noise: Array) -> Array:
    return math.sqrt(share) * x + math.sqrt(1 - share) * noise
