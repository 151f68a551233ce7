"""Gaussian likelihood: by hand, and its least is at the data's own law."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from models.real_valued import gaussian_series
from models.real_valued.gaussian_series import Gaussian
from training.objectives import gaussian_series as objectives


def test_nats_are_scipys():
    """Planted: the variance for the deviation."""
    x, mean, deviation = np.array([[0.3, 1.0]]), np.array([1.0, -1.0]), [0.5, 2.0]
    due = -stats.norm.logpdf(x, mean, deviation).sum()
    law = Gaussian(jnp.asarray(mean), jnp.asarray(deviation))
    np.testing.assert_allclose(objectives.nats(law, x)[0], due, rtol=1e-6)
    wrong = law.replace(deviation=law.deviation**2)
    assert abs(float(objectives.nats(wrong, x)[0]) - due) > 0.1


def batch(steps: int, rows: int = 4096) -> dict:
    """Next tokens that are N(last + 0.5, 0.2^2)."""
    rng = np.random.default_rng(0)
    window = rng.normal(size=(rows, 2, 1))
    step = 0.5 + 0.2 * rng.normal(size=(rows, 1))
    noise = rng.normal(size=(rows, steps, 2, 1))
    found = {"window": window, "next": window[:, -1] + step, "noise": noise}
    return {name: jnp.asarray(x, jnp.float32) for name, x in found.items()}


def constant(laws: dict[int, tuple]) -> gaussian_series.Model:
    """A model of linear steps: x_{k-1} ~ N(a + b x, s^2) for laws {k: (a, b, s)}."""

    def step(params, window, x, k):
        a, b, s = laws[k]
        return Gaussian(a + b * x, jnp.full_like(x, s))

    config = gaussian_series.Config(2, 1, 1, steps=len(laws))
    return gaussian_series.Model(config, lambda key: {}, step, lambda *rest: None)


def test_one_step_is_the_likelihood_of_the_data():
    """Its entropy, 0.5 log(2 pi e 0.04); n = 4,096, 5 standard errors."""
    loss = objectives.objective(constant({1: (0.5, 0.0, 0.2)})).loss
    value, metrics = loss({}, batch(1), None)
    due, error = 0.5 * np.log(2 * np.pi * np.e * 0.04), np.sqrt(0.5 / 4096)
    assert abs(float(value) - due) < 5 * error
    assert float(metrics["last"]) == float(value)
    wrong = objectives.objective(constant({1: (0.5, 0.0, 0.3)})).loss  # planted
    assert float(wrong({}, batch(1), None)[0]) > due + 5 * error


def test_two_steps_are_least_at_the_true_conditionals():
    """x_0 ~ N(m, v), x_1 = (x_0 + n) / sqrt 2: both steps' laws in closed form.

    Planted: other means, slopes and deviations have more nats.
    """
    m, v = 0.5, 0.04
    slope = (v / np.sqrt(2)) / ((v + 1) / 2)
    first = (m - slope * m / np.sqrt(2), slope, np.sqrt(v - slope * v / np.sqrt(2)))
    second = (m / np.sqrt(2), 0.0, np.sqrt((v + 1) / 2))
    data = batch(2)
    nats = lambda laws: float(objectives.objective(constant(laws)).loss({}, data, 0)[0])
    least = nats({1: first, 2: second})
    entropy = sum(0.5 * np.log(2 * np.pi * np.e * s**2) for _, _, s in (first, second))
    assert abs(least - entropy) < 5 * np.sqrt(1 / 4096)
    for k in (1, 2):
        for part, change in ((0, 0.1), (1, 0.3), (2, 0.1)):
            laws = {1: list(first), 2: list(second)}
            laws[k][part] += change
            assert nats(laws) > least


def test_the_objective_of_a_network_has_gradients():
    model = gaussian_series.model(gaussian_series.Config(2, 4, 1, steps=2))
    params = model.init(jax.random.key(0))
    made = objectives.objective(model)
    grads = jax.grad(lambda p: made.loss(p, batch(2, 8), None)[0])(params)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(grads))
    assert made.quantity(params) == "sum over 2 steps, nats a token"
