"""The classifier of conditional beams, and the best of several drafts."""

import jax.numpy as jnp
import numpy as np

from experiments.studies import sampler_searches
from models.predictors import value_predictor


def test_the_classifier_separates_two_clouds():
    """4,000 states; the best rule is right at 0.921. Planted: labels at random."""
    rng = np.random.default_rng(0)
    y = np.repeat([0.0, 1.0], 2000).astype(np.float32)
    x = rng.normal(size=(4000, 6)) * [1, 1, 1, 9, 9, 9]
    x[:, 0] += 2 * (2 * y - 1) / np.sqrt(2)
    right = lambda params: float(
        ((np.asarray(value_predictor.value(params, jnp.asarray(x))) > 0) == y).mean()
    )
    found = right(sampler_searches.fit(x, y, 1e-3))
    assert 0.9 < found < 0.94
    assert right(sampler_searches.fit(x, rng.permutation(y), 1e-3)) < 0.7


def test_the_best_of_several():
    found = sampler_searches._best([[3.0, 1.0, 2.0], [None, None]], [0.5, 1.0])
    assert found == {"best": [1.0, None], "mean": [2.0, None], "calls": [0.5, 1.0]}
