"""Models of real-valued tokens: their laws, steps and shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import ConfigError
from models.real_valued import gaussian_series

WINDOW = jnp.asarray([[1.0], [4.0], [2.0]])


def built(steps: int):
    model = gaussian_series.model(gaussian_series.Config(3, 4, 1, steps=steps))
    return model, model.init(jax.random.key(0))


def test_a_law_by_hand():
    """One step: tanh of differences, two numbers; planted: heights for differences."""
    model, params = built(1)
    noise = jnp.ones((1, 1))
    law = model.law(params, WINDOW, noise)
    p = jax.tree.map(np.asarray, params["params"])
    trunk, head = p["trunk"]["Dense_0"], p["head"]["Dense_0"]

    def out(inputs):
        h = np.tanh(np.asarray(inputs) @ trunk["kernel"] + trunk["bias"])
        return h @ head["kernel"] + head["bias"]

    mean, scale = out([3.0, -2.0])
    np.testing.assert_allclose(law.mean, [2.0 + mean], rtol=1e-5)
    np.testing.assert_allclose(law.deviation, [np.exp(scale)], rtol=1e-5)
    assert not np.allclose(law.mean, [2.0 + out([1.0, 4.0])[0]])
    again = model.law(params, WINDOW, -noise)  # no trajectory
    assert float(again.mean[0]) == float(law.mean[0])


def test_a_trajectory_is_the_steps_in_turn():
    """Three steps, the first from noise alone; planted: noise of another step."""
    model, params = built(3)
    noise = jnp.asarray([[0.5], [-1.0], [2.0]])
    x = noise[0]
    for k, fresh in ((3, noise[1]), (2, noise[2])):
        drawn = model.step(params, WINDOW, x, k)
        x = drawn.mean + drawn.deviation * fresh
    last = model.step(params, WINDOW, x, 1)
    law = model.law(params, WINDOW, noise)
    np.testing.assert_allclose(law.mean, WINDOW[-1] + last.mean, rtol=1e-5)
    np.testing.assert_allclose(law.deviation, last.deviation, rtol=1e-5)
    other = model.law(params, WINDOW, noise[jnp.asarray([0, 2, 1])])
    assert abs(float(other.mean[0] - law.mean[0])) > 1e-4


def test_signal():
    np.testing.assert_allclose(gaussian_series.signal(3), [1, 0.75, 0.25, 0], atol=1e-9)
    assert gaussian_series.signal(1) == [1.0, 0.0]


@pytest.mark.parametrize("fields", [(1, 4), (3, 0), (3, 4, 0), (3, 4, 1, 0)])
def test_wrong_shapes(fields):
    with pytest.raises(ConfigError, match="use at least"):
        gaussian_series.Config(*fields)
