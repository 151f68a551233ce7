"""The contract of verifiers of real-valued tokens: the laws of the tokens they commit.

Two drafts a row in R^2 from a chain whose later laws depend on earlier tokens; the
target's law is another chain of normal laws:

    target  x_1 ~ N(0.5, 0.6^2),   x_2 | x_1 ~ N(-0.7 x_1, 0.5^2),    in each coordinate
    draft   x_1 ~ N(0, 1),         x_2 | x_1 ~ N(-0.2 x_1, 0.8^2)

(x_1 - 0.5) / 0.6 and (x_2 + 0.7 x_1) / 0.5 are then standard normal, where a token was
committed. They, their products of coordinates and their means and variances are tested
with `ROWS` rows: Kolmogorov and Smirnov's test, and normal tests of moments.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance.require import require
from decoding.real_valued.verifying import RealVerdict, RealVerifier
from models.real_valued.gaussian_series import Gaussian

ROWS, DIM, SEED = 1 << 15, 2, 0
LEVEL = 1e-4  # of the smallest of the tests, with Bonferroni's factor


def keeps_the_law(spec: Spec) -> None:
    """Check a verifier that declares `LAW` against the target's law.

    Raises:
        AssertionError: the tokens have another law.
    """
    verifier = spec.build({})
    if verifier.guarantee == base.LAW:
        p = fit(verifier)
        require(p > LEVEL, spec, f"the tokens have another law, p = {p:.1e}")


def target(x: Any, place: int) -> tuple[Any, float]:
    """Return the mean and the deviation of x_2 given x_1, or of x_1."""
    return (-0.7 * x, 0.5) if place else (0.5 + 0 * x, 0.6)


def drafter(x: Any, place: int) -> tuple[Any, float]:
    return (-0.2 * x, 0.8) if place else (0 * x, 1.0)


@functools.partial(jax.jit, static_argnums=0)
def verdicts(verifier: RealVerifier, keys: Array) -> tuple[Array, RealVerdict]:
    """Draft two tokens for each key, and verify them: drafts [B, 2, D], verdicts."""

    def one(key: Array) -> tuple[Array, RealVerdict]:
        drafting, coins = jax.random.split(key)
        noise = jax.random.normal(drafting, (2, DIM))
        mean, deviation = drafter(noise[0], 0)
        first = mean + deviation * noise[0]
        mean, deviation = drafter(first, 1)
        drafts = jnp.stack([first, mean + deviation * noise[1]])
        before = (jnp.zeros(DIM), first, drafts[1])

        def laws(of: Any, places: range) -> Gaussian:
            pairs = [of(before[i], min(i, 1)) for i in places]
            spread = [jnp.full(DIM, deviation) for _, deviation in pairs]
            return Gaussian(jnp.stack([mean for mean, _ in pairs]), jnp.stack(spread))

        q, p = laws(drafter, range(2)), laws(target, range(3))
        return drafts, verifier.verify(coins, drafts, q, p)

    return jax.vmap(one)(keys)


def committed(verifier: RealVerifier) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised x_1 [ROWS, D], and x_2 of the rows that committed one."""
    keys = jax.random.split(jax.random.key(SEED), ROWS)
    drafts, verdict = jax.tree.map(np.asarray, verdicts(verifier, keys))
    count = verdict.count[:, None]
    x1 = np.where(count > 0, drafts[:, 0], verdict.token)
    x2 = np.where(count > 1, drafts[:, 1], verdict.token)
    z = []
    for x, place in ((x1, 0), (x2, 1)):
        mean, deviation = target(x1, place)
        z.append((x - mean) / deviation)
    return z[0], z[1][verdict.count > 0]


def fit(verifier: RealVerifier) -> float:
    """Return the smallest p-value of all tests, times their number."""
    values = []
    for z in committed(verifier):
        n = len(z)
        values += [stats.kstest(z[:, i], "norm").pvalue for i in range(DIM)]
        moments = (z[:, 0] - 0, z[:, 0] ** 2 - 1, z[:, 0] * z[:, 1])
        for moment, variance in zip(moments, (1.0, 2.0, 1.0)):
            score = moment.mean() / np.sqrt(variance / n)
            values.append(2 * stats.norm.sf(abs(score)))
    return float(min(1.0, min(values) * len(values)))
