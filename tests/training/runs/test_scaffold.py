"""The optimiser of a recipe: its warm-up, its clipping, its second moment."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging

from configs.base import training
from training.runs import scaffold

GRADS = {"w": jnp.asarray([[10.0, -3.0], [0.1, 0.0]])}


def recipe(**fields) -> ml_collections.ConfigDict:
    c = training.train()
    c.update(fields)
    return c


def test_a_warm_up_that_is_cut_is_named(caplog):
    """Planted: as many steps as it needs, and no word."""
    logging.get_absl_logger().propagate = True
    for steps, cut in ((47_999, True), (48_000, False)):
        caplog.clear()
        scaffold.optimizer(recipe(warmup=12_000), steps)
        words = [r.message for r in caplog.records if r.levelname == "WARNING"]
        assert bool(words) == cut
        assert not cut or "warmup=12000 is cut to 11999" in words[0]


def moments(**fields) -> list[np.ndarray]:
    """What AdamW keeps after one step: means of the gradient and of its square."""
    own = scaffold.optimizer(recipe(**fields), 400)
    params = jax.tree.map(jnp.zeros_like, GRADS)
    state = own.update(GRADS, own.init(params), params)[1]
    return [np.asarray(x) for x in jax.tree.leaves(state) if x.shape == (2, 2)]


def test_clipping_by_value_and_the_second_moment():
    """Each number by itself. Planted: the gradient as it was."""
    bounded = np.clip(GRADS["w"], -0.5, 0.5)
    mean, square = moments(clip_value=0.5, b2=0.999)
    np.testing.assert_allclose(mean, 0.1 * bounded, rtol=1e-5)
    np.testing.assert_allclose(square, 0.001 * bounded**2, rtol=1e-4)
    mean, square = moments()
    np.testing.assert_allclose(mean, 0.1 * GRADS["w"], rtol=1e-5)
    np.testing.assert_allclose(square, 0.05 * GRADS["w"] ** 2, rtol=1e-4)
