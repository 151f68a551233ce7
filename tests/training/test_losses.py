"""The losses between two laws: values and gradients against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import ConfigError
from training import losses

RNG = np.random.default_rng(0)
P, Q = RNG.normal(size=(2, 5, 7)) * 2


def law(x):
    y = np.exp(x - x.max(-1, keepdims=True))
    return y / y.sum(-1, keepdims=True)


def mixed(p, q, b=0.9):
    m = b * p + (1 - b) * q
    return b * (p * np.log(p / m)).sum(-1) + (1 - b) * (q * np.log(q / m)).sum(-1)


def frozen_weight(p, q, at):
    """The hybrid's weight is a constant of the gradient: alpha is taken at `at`."""
    accepted = np.minimum(p, at).sum(-1)
    w = np.exp(-3.0 * accepted)
    divergence = (p * np.log(p / q)).sum(-1)
    return w * divergence + (1 - w) * (1 - np.minimum(p, q).sum(-1))


DEFINITIONS = {
    "soft_ce": lambda p, q, at: -(p * np.log(q)).sum(-1),
    "kl": lambda p, q, at: (p * np.log(p / q)).sum(-1),
    "reverse_kl": lambda p, q, at: (q * np.log(q / p)).sum(-1),
    "jsd": lambda p, q, at: mixed(p, q),
    "tv": lambda p, q, at: 0.5 * np.abs(p - q).sum(-1),
    "nla": lambda p, q, at: -np.log(np.minimum(p, q).sum(-1)),
    "hybrid": frozen_weight,
}


def slopes(define, step=1e-6):
    """d sum(loss) / d draft logits by central differences in float64."""
    p, at = law(P), law(Q)
    out = np.zeros_like(Q)
    for i in np.ndindex(*Q.shape):
        ends = []
        for sign in (1, -1):
            x = Q.copy()
            x[i] += sign * step
            ends.append(define(p, law(x), at).sum())
        out[i] = (ends[0] - ends[1]) / (2 * step)
    return out


@pytest.mark.parametrize("name", DEFINITIONS)
def test_values_and_gradients(name):
    """float32 against float64: values to 2e-6, gradients to 2e-5."""
    loss, define = losses.by_name(name), DEFINITIONS[name]
    p, q = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    expected = define(law(P), law(Q), law(Q))
    np.testing.assert_allclose(loss(p, q), expected, atol=2e-6)
    found = jax.grad(lambda q: loss(p, q).sum())(q)
    np.testing.assert_allclose(found, slopes(define), atol=2e-5)
    warm = jax.grad(lambda q: loss(p, 0.9 * q).sum())(q)  # planted: a temperature
    assert np.abs(warm - slopes(define)).max() > 1e-3


def test_every_loss_is_tested():
    assert set(losses.LOSSES) == {*DEFINITIONS, "tvdpp"}


def test_tvdpp_is_a_rescaled_tv():
    """With the statistics of a position, exactly taken over q: grad = grad tv / sigma.

    Subtracting the mean changes nothing in expectation over q, and here the expectation
    is exact.
    """
    p, q = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    found = jax.grad(lambda q: losses.tvdpp(p, q, axis="position").sum())(q)
    plain = jax.grad(lambda q: losses.tv(p, q).sum())(q)
    reward = (law(P) > law(Q)).astype(float)
    first = (law(Q) * reward).sum(-1, keepdims=True)
    sigma = np.sqrt((law(Q) * (reward - first) ** 2).sum(-1, keepdims=True))
    np.testing.assert_allclose(found * sigma, plain, atol=1e-5)
    assert np.abs(found - plain).max() > 1e-2  # planted: sigma forgotten


def test_tvdpp_has_less_variance_than_policy_gradient():
    """Of the one-sample estimators A(x) grad log q(x), x ~ q, scaled to one mean.

    The spread of an estimator around its mean, summed over logits and divided by the
    squared mean, exactly over x: smaller with the advantage than with the reward.
    """
    p, q = law(P), law(Q)
    reward = (p > q).astype(float)
    first = (q * reward).sum(-1, keepdims=True)
    score = np.eye(7)[None] - q[:, None]  # [n, x, logit]: grad log q(x)

    def noise(weight):
        each = weight[..., None] * score
        mean = (q[..., None] * each).sum(1)
        spread = (q[..., None] * (each - mean[:, None]) ** 2).sum((1, 2))
        return spread / (mean**2).sum(-1)

    assert (noise(reward - first) < noise(reward)).all()
    assert not (noise(reward - 2 * first) < noise(reward - first)).all()  # planted


def test_a_forbidden_token_costs_nothing():
    """The teacher's -inf: 0 log 0 is 0, in value and gradient."""
    p = jnp.asarray(P, jnp.float32).at[:, 3].set(-jnp.inf)
    q = jnp.asarray(Q, jnp.float32)
    for name, loss in losses.LOSSES.items():
        value, slope = jax.value_and_grad(lambda q, f=loss: f(p, q).sum())(q)
        if name == "reverse_kl":
            assert value == np.inf  # there the draft is told that it must not
        else:
            assert np.isfinite(value) and np.isfinite(slope).all(), name


def test_a_law_that_is_no_number_is_seen():
    """A target or a draft of NaN must stop a training: it is no loss of 0."""
    none = np.full_like(P, np.nan)
    for name, loss in losses.LOSSES.items():
        for laws in ((none, Q), (P, none)):
            assert np.isnan(np.asarray(jax.jit(loss)(*laws))).all(), name


def test_names():
    with pytest.raises(ConfigError, match="loss='mse'"):
        losses.by_name("mse")
    with pytest.raises(ConfigError, match="axis='row'"):
        losses.tvdpp(jnp.zeros((1, 2)), jnp.zeros((1, 2)), axis="row")
