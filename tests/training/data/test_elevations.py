"""Profiles of land: parts that do not touch, batches of seed and step."""

import numpy as np
import pytest

from models.errors import DataError
from training.data import elevations


def test_profiles():
    """Metres come back; planted: parts that touch share a neighbour."""
    found = elevations.load(held=64)
    assert found.train.shape == (344 - 64 - elevations.GAP, 403)
    assert found.held.shape == (64, 403)
    metres = found.train * found.scale
    np.testing.assert_allclose(metres, np.round(metres), atol=1e-3)
    assert np.diff(found.train, axis=1).std() == pytest.approx(1, rel=1e-4)
    between = lambda a, b: np.abs(a - b).mean()
    near = between(found.train[-1], found.train[-2])
    assert between(found.train[-1], found.held[0]) > 3 * near


@pytest.mark.parametrize("held", [0, 336])
def test_parts_of_nothing(held):
    with pytest.raises(DataError, match="use 1 to"):
        elevations.load(held)


def test_batches():
    """A function of seed and step; heights within half a metre; planted: others."""
    profiles = elevations.load()
    make = lambda seed: elevations.Stream(profiles, 4, 3, 8, seed)
    stream, again = make(1), make(1)
    next(stream)
    second = next(stream)
    again.restore({"step": 1})
    same = next(again)
    assert {n: x.shape for n, x in same.items()} == {
        "window": (8, 4, 1),
        "next": (8, 1),
        "noise": (8, 3, 2, 1),
    }
    assert all(np.array_equal(second[name], same[name]) for name in same)
    other = make(2).batch(profiles.train, 2)
    assert not np.array_equal(other["window"], second["window"])
    metres = np.concatenate([second["window"][..., 0], second["next"]], 1)
    metres = metres * profiles.scale
    assert 0.1 < np.abs(metres - np.round(metres)).max() <= 0.501
    windows = np.lib.stride_tricks.sliding_window_view(profiles.train, 5, axis=1)
    gap = np.abs(windows * profiles.scale - metres[0]).max(-1)
    assert gap.min() < 0.51
