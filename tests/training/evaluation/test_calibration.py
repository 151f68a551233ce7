"""Calibration bins and the ROC area, by hand."""

import numpy as np
import pytest

from experiments.reporting import plots
from models.errors import DataError
from training.evaluation import calibration


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


def test_the_diagram_shows_counts(tmp_path, monkeypatch):
    """Bins with their cases below them, errors by hand; planted: no counts, no bars."""
    found = calibration.bins([0.2] * 4 + [0.9] * 9, [0, 0, 0, 1, *[1] * 9], count=2)
    plot = calibration.plot("mine", found)
    assert sum(plot["counts"]["n"]) == 13
    about = 1.96 * np.sqrt(0.25 * 0.75 / 4)
    np.testing.assert_allclose(plot["series"][0]["error"], [about, 0])
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, *rest: drawn.append(figure))
    plots._plot(plot, tmp_path)
    plots._plot({k: v for k, v in plot.items() if k != "counts"}, tmp_path)
    with_counts, without = ([a.patches for a in f.axes] for f in drawn)
    assert [bar.get_height() for bar in with_counts[1]] == [4, 9]
    assert len(without) == 1 and not without[0]
    lines = calibration.table({"mine": found})["lines"]
    assert lines[0] == ["mine", "0.200", f"0.250 ± {about:.3f}", "4"]


def test_weights_and_ends():
    some = calibration.bins([0.1, 1.0], [0.0, 1.0], [1.0, 0.0])
    assert some.predicted == [0.1] and some.auc == 0.5
    assert len(calibration.plot("x", some)["series"]) == 2
    with pytest.raises(DataError, match="weights that sum to 0"):
        calibration.bins([0.1], [1.0], [0.0])
