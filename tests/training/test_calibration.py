"""Calibration bins and the ROC area, by hand."""

import numpy as np
import pytest

from models.errors import DataError
from training import calibration


def test_worked_example():
    """Two bins: predictions 0.2, 0.4 with outcomes 0, 1; 0.9 (twice) with 1 and 0.5."""
    found = calibration.bins([0.2, 0.4, 0.9, 0.9], [0.0, 1.0, 1.0, 0.5], count=2)
    np.testing.assert_allclose(found.predicted, [0.3, 0.9])
    np.testing.assert_allclose(found.observed, [0.5, 0.75])
    assert found.counts == [2.0, 2.0]
    np.testing.assert_allclose(found.error, (0.2 + 0.15) / 2)
    # Cases of 1: 0.4 and 0.9 (1.5 of them); of 0: 0.2 and half a one at 0.9.
    np.testing.assert_allclose(found.auc, (1 * 1 + 1.5 * (1 + 0.25)) / (2.5 * 1.5))


def test_a_true_chance_lies_on_the_diagonal():
    """n = 10^5, seed 0; planted: its square, which bins and area tell apart."""
    rng = np.random.default_rng(0)
    chance = rng.random(100_000)
    came = (rng.random(chance.shape) < chance).astype(float)
    sound, bent = (calibration.bins(f, came) for f in (chance, chance**2))
    assert sound.error < 0.02 < 0.1 < bent.error
    np.testing.assert_allclose(sound.auc, bent.auc)  # the order is the same
    np.testing.assert_allclose(sound.auc, 5 / 6, atol=0.01)


def test_weights_and_ends():
    some = calibration.bins([0.1, 1.0], [0.0, 1.0], [1.0, 0.0])
    assert some.predicted == [0.1] and some.auc == 0.5
    assert len(calibration.plot("x", some)["series"]) == 2
    with pytest.raises(DataError, match="weights that sum to 0"):
        calibration.bins([0.1], [1.0], [0.0])
