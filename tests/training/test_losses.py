"""The losses between two laws: values and gradients against their definitions."""

import functools

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


WEIGHTS = np.array([1.0, 0.0, 1.0, 0.5, 1.0])


def surrogate(weights):
    """TVD++ of a batch: q and A are constants of the gradient, taken at `at`."""

    def define(p, q, at):
        reward = (p > at).astype(float)
        share = at * (weights / weights.sum())[:, None]
        first = (share * reward).sum()
        sigma = np.sqrt((share * (reward - first) ** 2).sum())
        return -(at * (reward - first) / sigma * np.log(q)).sum(-1)

    return define


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["all", "weighted"])
def test_tvdpp_of_a_batch(weights):
    """The mean and the deviation are the batch's, of what counts, as much as it does.

    Values to 1e-5 and gradients to 2e-5, float32 against float64.
    """
    each = np.ones(5) if weights is None else weights
    define = surrogate(each)
    p, q = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    given = None if weights is None else jnp.asarray(weights, jnp.float32)
    expected = define(law(P), law(Q), law(Q))
    np.testing.assert_allclose(losses.tvdpp(p, q, given), expected, atol=1e-5)
    wanted = slopes(lambda *laws: each * define(*laws))

    def slope(**fields):
        return jax.grad(lambda q: (each * losses.tvdpp(p, q, **fields)).sum())(q)

    np.testing.assert_allclose(slope(weights=given), wanted, atol=2e-5)
    others = [slope(axis="position")]  # planted: statistics of each position
    if weights is not None:
        others.append(slope())  # planted: what does not count is in the statistics
    assert all(np.abs(found - wanted).max() > 1e-3 for found in others)


def shares(loss, p, q):
    """The weights c [n, V] of a surrogate sum_x c(x) log q(x), from the loss itself.

    Its slope is g = c - q sum(c), which leaves sum(c) open; its value is
    sum(g log q) + sum(c) sum(q log q), which does not.
    """
    value = np.asarray(loss(p, q), np.float64)[:, None]
    slope = np.asarray(jax.grad(lambda q: loss(p, q).sum())(q), np.float64)
    at = law(np.asarray(q, np.float64))
    log = np.log(at)
    rest = value - (slope * log).sum(-1, keepdims=True)
    return slope + at * rest / (at * log).sum(-1, keepdims=True)


def test_tvdpp_has_less_variance_than_policy_gradient():
    """Of one-sample estimators c(x) / q(x) grad log q(x), x ~ q, scaled to one mean.

    The spread of an estimator around its mean, summed over logits and divided by the
    squared mean, exactly over x: with the weights of `losses.tvdpp` below nine tenths
    of what it is with the plain reward, at every position.
    """
    p, q = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    at = law(Q)
    score = np.eye(7)[None] - at[:, None]  # [n, x, logit]: grad log q(x)

    def noise(weight):
        each = (weight / at)[..., None] * score
        mean = (at[..., None] * each).sum(1)
        spread = (at[..., None] * (each - mean[:, None]) ** 2).sum((1, 2))
        return spread / (mean**2).sum(-1)

    def plain(p, q):
        """The policy gradient's surrogate: the reward, and no advantage."""
        logq = jax.nn.log_softmax(q, -1)
        reward = jax.nn.softmax(p, -1) > jnp.exp(logq)
        return -(jax.lax.stop_gradient(jnp.exp(logq)) * reward * logq).sum(-1)

    usual = noise(-at * (law(P) > at))
    for axis in losses.AXES:
        own = functools.partial(losses.tvdpp, axis=axis)
        assert (noise(shares(own, p, q)) < 0.9 * usual).all()
    # Planted: the mean not taken off, of which the gradient's expectation is the same.
    assert not (noise(shares(plain, p, q)) < 0.99 * usual).any()


def test_cross_entropy():
    """-log q(label) and its gradient, float32 against float64."""
    labels = np.array([0, 3, 6, 2, 2])
    define = lambda p, q, at: -np.log(q[np.arange(5), labels])
    q = jnp.asarray(Q, jnp.float32)
    expected = define(law(P), law(Q), law(Q))
    np.testing.assert_allclose(losses.ce(q, labels), expected, atol=2e-6)
    found = jax.grad(lambda q: losses.ce(q, labels).sum())(q)
    np.testing.assert_allclose(found, slopes(define), atol=2e-5)
    late = jax.grad(lambda q: losses.ce(q, np.roll(labels, 1)).sum())(q)
    assert np.abs(late - slopes(define)).max() > 0.1  # planted: the label before


def test_smooth_l1():
    """A square of errors below 1, a line beyond, and the mean over the width."""
    error = P - Q
    assert (np.abs(error) < 1).any() and (np.abs(error) > 1).any()
    each = np.where(np.abs(error) < 1, 0.5 * error**2, np.abs(error) - 0.5)
    found, wanted = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    value = losses.smooth_l1(found, wanted)
    np.testing.assert_allclose(value, each.mean(-1), rtol=1e-5)
    slope = jax.grad(lambda x: losses.smooth_l1(x, wanted).sum())(found)
    np.testing.assert_allclose(slope, np.clip(error, -1, 1) / 7, atol=1e-6)
    squares = 0.5 * ((found - wanted) ** 2).mean(-1)  # planted: no line beyond
    for planted in (squares, value * 7):  # planted: the sum over the width
        assert np.abs(planted - each.mean(-1)).max() > 0.1


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
