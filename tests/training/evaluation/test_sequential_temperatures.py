"""Temperatures of a chain's confidences, found where they were planted."""

import numpy as np
import pytest

from models.errors import DataError
from training.evaluation import sequential_temperatures

TRUE = (2.0, 0.5, 1.0)


def chains(n: int = 40_000):
    """Logits that are `TRUE` times too large, and outcomes of the true ones."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0.5, 1.0, (n, len(TRUE)))
    chance = 1 / (1 + np.exp(-logits))
    return logits * TRUE, (rng.random(chance.shape) < chance).astype(float)


def test_planted_temperatures_are_found():
    """Within a tenth, and the product's error falls at each draft (n = 40,000)."""
    logits, accepted = chains()
    found = sequential_temperatures.fitted(logits, accepted)
    np.testing.assert_allclose(found, TRUE, rtol=0.1)
    error = lambda t: sequential_temperatures.errors(logits, accepted, t)
    before, after = error((1.0, 1.0, 1.0)), error(found)
    assert max(after) < 0.01 and before[0] > 0.05 and before[1] > 0.02
    # Planted: each draft's own confidence, without those before it.
    last, reached = logits[:, 2:], np.cumprod(accepted, 1)[:, 2:]
    alone = sequential_temperatures.fitted(last, reached)
    assert abs(alone[0] - TRUE[2]) > 0.5


def test_shapes_that_do_not_match():
    with pytest.raises(DataError, match=r"\(2, 3\)"):
        sequential_temperatures.fitted(np.zeros((2, 3)), np.zeros((2, 2)))
    for few in ((1.0, 1.0), (1.0, 0.0, 1.0)):
        with pytest.raises(DataError, match="3 drafts"):
            sequential_temperatures.errors(np.zeros((2, 3)), np.zeros((2, 3)), few)
