"""Log-linear laws: points whose law is known, and fits that must miss it."""

import numpy as np
import pytest

from experiments.measurement import log_linear_fit
from models.errors import DataError

TOKENS, SIZES, SLOPES = (1e3, 2e3, 4e3, 8e3), (1e4, 3e4, 9e4, 27e4), (0.20, 0.08)


def study(rng, bent=0.0, prompts=24):
    """16 points: y = a + b · log2 x, of prompts that differ, and trainings that do."""
    x = np.array([(n, s) for n in TOKENS for s in SIZES])
    logs = np.log2(x) - np.log2(x).mean(0)
    law = 2.0 + logs @ SLOPES + bent * logs[:, 0] ** 2 + rng.normal(0, 0.03, 16)
    easy = np.exp(rng.normal(0, 0.1, prompts))
    calls = rng.integers(20, 40, (16, prompts))
    new = law[:, None] * easy / easy.mean() * calls * rng.normal(1, 0.05, calls.shape)
    return x, new, calls


def missed(law) -> np.ndarray:
    low, high = np.asarray(law.ci95).T
    return (low > SLOPES) | (high < SLOPES)


def test_the_law_is_recovered_within_its_interval():
    """n = 40 studies, seed 0: a 95 % interval misses at most 7 times (chance below
    10^-3 for each slope), and is narrow enough to say something."""
    rng = np.random.default_rng(0)
    laws = [log_linear_fit.straight(*study(rng)) for _ in range(40)]
    assert (np.sum([missed(law) for law in laws], 0) <= 7).all()
    assert np.median([np.ptp(law.ci95, axis=1) for law in laws]) < 0.1
    assert min(law.r2 for law in laws) > 0.9


def test_faults_miss_it(monkeypatch):
    """Planted: the axes exchanged, and numbers in the place of their logarithms."""
    x, new, calls = study(np.random.default_rng(1))
    right = log_linear_fit.straight(x, new, calls)
    assert not missed(right).any()
    assert missed(log_linear_fit.straight(x[:, ::-1], new, calls)).all()
    monkeypatch.setattr(log_linear_fit, "logs", lambda x: x)
    plain = log_linear_fit.straight(x, new, calls)
    assert missed(plain).all() and plain.r2 < right.r2 - 0.03


def test_few_points_say_less(monkeypatch):
    """Four points with chance of their own, n = 200 fits, seed 2: at most 24 misses
    (10 expected, chance below 10^-4); planted: the interval of a normal law."""
    rng, x = np.random.default_rng(2), np.array([[1.0], [2.0], [4.0], [8.0]])

    def misses() -> int:
        found = 0
        for _ in range(200):
            y = 1 + 0.3 * np.log2(x) + rng.normal(0, 0.1, x.shape)
            low, high = log_linear_fit.straight(x, y, np.ones_like(x)).ci95[0]
            found += not low <= 0.3 <= high
        return found

    monkeypatch.setattr(log_linear_fit, "DRAWS", 400)
    assert misses() <= 24
    monkeypatch.setattr(log_linear_fit.special, "stdtrit", lambda freedom, level: 1.96)
    assert misses() > 24


def test_a_bend_is_seen():
    """Seed 3; planted: a law that is straight is not called bent."""
    rng = np.random.default_rng(3)
    (low, high), other = log_linear_fit.bends(*study(rng, bent=0.08))
    assert 0 < low < 0.08 < high and other[0] < 0 < other[1]
    for low, high in log_linear_fit.bends(*study(rng)):
        assert low < 0 < high
    x, new, calls = study(rng)
    assert log_linear_fit.bends(x[:5], new[:5], calls[:5]) is None


def test_by_hand():
    """Points on a line, one unit each: 1 + 2 log2 x, and nothing left."""
    law = log_linear_fit.straight([[1], [4], [8]], [[3], [10], [7]], [[3], [2], [1]])
    np.testing.assert_allclose([law.start, *law.slopes, law.r2], [1, 2, 1])
    np.testing.assert_allclose(law.ci95, [[2, 2]], atol=1e-6)
    assert law.at([16]) == pytest.approx(9) and law.points == 3


def test_mistakes_are_named():
    with pytest.raises(DataError, match="axis 0 is 2 at every point"):
        log_linear_fit.straight([[2], [2], [2]], [[1]] * 3, [[1]] * 3)
    with pytest.raises(DataError, match="2 points"):
        log_linear_fit.straight([[1], [2]], [[1]] * 2, [[1]] * 2)
    with pytest.raises(DataError, match="above 0"):
        log_linear_fit.straight([[0], [2], [3]], [[1]] * 3, [[1]] * 3)
