"""The regression against an optimiser, and thresholds that were planted."""

import numpy as np
import pytest
from scipy import optimize

from models.errors import DataError
from training.objectives.predictors import entropy_threshold
from training.objectives.predictors.entropy_threshold import Line, Tokens


def drawn(n: int) -> Tokens:
    """Tokens of the law that the regression assumes, w = -1.5 and b = 2."""
    rng = np.random.default_rng(0)
    entropy = rng.exponential(1.0, n)
    return Tokens(entropy, rng.random(n) < 1 / (1 + np.exp(1.5 * entropy - 2)))


def stepped(n: int, at: float, wrong: float, seed: int = 1) -> Tokens:
    """The best token is true below an entropy; a share of the labels is the other."""
    rng = np.random.default_rng(seed)
    entropy = rng.uniform(0, 3, n)
    return Tokens(entropy, (entropy < at) ^ (rng.random(n) < wrong))


def loss(tokens: Tokens, theta, balanced: bool = True, ridge: float = 0.5) -> float:
    """The objective in plain words."""
    n, right = len(tokens.best), tokens.best.sum()
    weights = np.where(tokens.best, n / (2 * right), n / (2 * (n - right)))
    odds = theta[0] * tokens.entropy + theta[1]
    each = np.logaddexp(0, np.where(tokens.best, -odds, odds))
    return ridge * theta[0] ** 2 + ((weights if balanced else 1) * each).sum()


def least(tokens: Tokens, **other) -> tuple:
    """Weight and bias by an optimiser without derivatives."""
    return tuple(
        optimize.minimize(
            lambda theta: loss(tokens, theta, **other),
            np.array([-1.0, 1.0]),
            method="Nelder-Mead",
            options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 4000},
        ).x
    )


def test_the_regression_is_the_least_loss():
    """That of Nelder and Mead; scikit-learn 1.9.1 gave the other numbers, to 1e-6."""
    tokens = drawn(4000)
    line = entropy_threshold.fit(tokens)
    assert line == pytest.approx((-1.55438439, 1.56507732), abs=1e-6)
    for n in (20, 400):  # few tokens, where the penalty counts
        few = Tokens(*(x[:n] for x in tokens))
        line = entropy_threshold.fit(few)

        assert line == pytest.approx(least(few), abs=1e-5)
        # Planted: classes that are not balanced, and no penalty.
        assert line != pytest.approx(least(few, balanced=False), abs=1e-3)
        assert line != pytest.approx(least(few, ridge=0.0), abs=1e-3)


def test_separable_tokens_have_a_finite_fit():
    tokens = stepped(50, 1.2, 0.0)
    line = entropy_threshold.fit(tokens)
    assert np.isfinite(line).all() and loss(tokens, line) < loss(tokens, (0, 0))


@pytest.mark.parametrize("at", [0.8, 1.2, 2.0])
def test_a_planted_threshold_is_found(at):
    """20,000 tokens, a tenth of the labels wrong: within 0.06 nats.

    Cuts .01 apart are 0.02 nats apart at these weights of 2 to 4 and more at the ends.
    """
    found = entropy_threshold.measured(stepped(20_000, at, 0.1), 0.2, 42)
    assert found["threshold"] == pytest.approx(at, abs=0.06)
    # n = 4,000: 4 standard errors of a share of .9 are 0.019.
    assert found["accuracy"] == pytest.approx(0.9, abs=0.019)
    assert found["pauses"] == pytest.approx(1 - at / 3, abs=0.05)
    assert found["accuracy"] > found["always"] + found["margin"]
    assert sum(count for count, _ in found["bins"]) == 20_000
    assert found["tokens"] == [16_000, 4_000]


def test_what_is_tested_chose_nothing():
    """Planted: test tokens whose labels are all wrong leave the threshold as it is."""
    tokens = stepped(5000, 1.2, 0.1)
    own = np.random.default_rng(42).permutation(5000)[:1000]
    best = tokens.best.copy()
    best[own] = ~best[own]
    first, other = (
        entropy_threshold.measured(x, 0.2, 42)
        for x in (tokens, Tokens(tokens.entropy, best))
    )
    assert first["threshold"] == other["threshold"]
    assert other["accuracy"] == pytest.approx(1 - first["accuracy"])


def test_fault_flipped_labels():
    """Planted: y = 1 where the true token is *not* the best; or all of one class."""
    tokens = stepped(2000, 1.2, 0.1)
    with pytest.raises(DataError, match="no threshold separates them"):
        entropy_threshold.measured(Tokens(tokens.entropy, ~tokens.best), 0.2, 42)
    every = Tokens(tokens.entropy, np.ones(2000, bool))
    with pytest.raises(DataError, match="at 2000 of 2000 tokens"):
        entropy_threshold.fit(every)
    with pytest.raises(DataError, match=r"test=1.0 of 2000 tokens"):
        entropy_threshold.measured(tokens, 1.0, 42)


def test_a_threshold_is_where_the_chance_is_the_cut():
    """Of equal cuts the lowest is taken: the fewest pauses."""
    line = Line(-2.0, 1.0)
    assert entropy_threshold.threshold(line, 0.5) == pytest.approx(0.5)
    chance = 1 / (1 + np.exp(2.0 * 0.7 - 1.0))
    assert entropy_threshold.threshold(line, chance) == pytest.approx(0.7)
    tokens = Tokens(np.array([0.1, 3.0]), np.array([True, False]))
    assert entropy_threshold.cut(line, tokens) == 0.01
    assert entropy_threshold.threshold(line, 0.01) < 3.0
