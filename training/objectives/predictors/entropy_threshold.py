"""Fit an entropy from which on a model's most probable token is not to be trusted.

He, Liu, Wang, Li, Wang, Peng, Zheng, *Towards Better Code Generation: Adaptive Decoding
with Uncertainty Guidance*, 2025, arXiv 2506.08980. For every token of a text, H is the
entropy of its law in nats, and y = 1 where the true token is the most probable one:

    P(y = 1 | H) = sigmoid(w H + b),   least  w^2 / 2 + C sum_i s_i bce_i,   C = 1
    theta = (logit(cut) - b) / w,      cut of .01, .02 .. .99 with the best accuracy

s_i = n / (2 n of the class of i): scikit-learn's `class_weight="balanced"`, its default
L2 penalty, and its free intercept.

Deviations: the authors' code balances by leaving tokens of the larger class out, and
chooses the cut on the test tokens; here it is chosen on those of the fit, so that the
accuracy on the test tokens is of tokens that chose nothing.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError
from training.evaluation import calibration

CUTS = np.arange(1, 100) / 100
PENALTY = 1.0  # C of scikit-learn's LogisticRegression
EDGES = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf)  # nats, of the report's rows


class Tokens(NamedTuple):
    """Tokens of a text under the model's laws."""

    entropy: np.ndarray  # float64[n], in nats
    best: np.ndarray  # bool[n]: the true token is the most probable one


class Line(NamedTuple):
    """Log-odds that the most probable token is the true one: weight H + bias."""

    weight: float
    bias: float


def fit(tokens: Tokens, steps: int = 100) -> Line:
    """Fit the regression by Newton's method, from 0.

    Raises:
        DataError: all tokens are of one class, or the entropy does not fall where the
            most probable token is the true one.
    """
    x = np.stack([tokens.entropy, np.ones(len(tokens.entropy))], 1)
    sign = np.where(tokens.best, 1.0, -1.0)
    counts = np.array([np.sum(~tokens.best), np.sum(tokens.best)])
    if not counts.all():
        raise DataError(
            f"the most probable token is the true one at {counts[1]} of {counts.sum()} "
            "tokens: use a text with both kinds, or more data.tokens"
        )
    share = PENALTY * counts.sum() / (2 * counts[tokens.best.astype(int)])
    ridge = np.diag([1.0, 0.0])

    def loss(theta: np.ndarray) -> float:
        return theta @ ridge @ theta / 2 + share @ np.logaddexp(0, -sign * (x @ theta))

    theta = np.zeros(2)
    for _ in range(steps):
        wrong = 1 / (1 + np.exp(np.minimum(sign * (x @ theta), 500)))
        slope = ridge @ theta - x.T @ (share * sign * wrong)
        curve = ridge + (x.T * (share * wrong * (1 - wrong))) @ x
        step = np.linalg.solve(curve, slope)
        while loss(theta - step) > loss(theta) and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta - step
        if np.abs(step).max() < 1e-10:
            break
    if not theta[0] < 0:
        raise DataError(
            f"weight={theta[0]:.4g}: the entropy is not lower where the most probable "
            "token is the true one, so no threshold separates them: use another text, "
            "or more data.tokens"
        )
    return Line(float(theta[0]), float(theta[1]))


def cut(line: Line, tokens: Tokens) -> float:
    """Return the cut of the best accuracy; of equal ones the lowest, with most sure."""
    odds = line.weight * tokens.entropy + line.bias
    return float(max(CUTS, key=lambda c: np.mean((odds >= logit(c)) == tokens.best)))


def threshold(line: Line, chance: float) -> float:
    """Return the entropy in nats at which P(y = 1) is `chance`."""
    return (logit(chance) - line.bias) / line.weight


def logit(chance: float) -> float:
    """Return the log-odds of a probability."""
    return float(np.log(chance) - np.log1p(-chance))


def measured(tokens: Tokens, test: float, seed: int) -> dict[str, Any]:
    """Fit on one part of the tokens, and measure on the other.

    Args:
        tokens: all of them.
        test: share of the part for the measurement, rounded up.
        seed: of the division.

    Returns:
        `threshold` and the fit; on the test tokens `accuracy`, `always` (that of a rule
        that is always sure) and the `margin` of their difference, 95 %; `pauses`, the
        share of tokens at H >= threshold; `wrong`, the share of these whose true token
        is another; `caught`, the share of such tokens that are among the pauses; and
        `bins`, all tokens by entropy.

    Raises:
        DataError: see `fit`; or a part has no tokens.
    """
    n = len(tokens.entropy)
    size = int(np.ceil(test * n))
    if not 0 < size < n:
        raise DataError(
            f"test={test} of {n} tokens: a part is empty: use a share between 0 and 1, "
            "or more data.tokens"
        )
    order = np.random.default_rng(seed).permutation(n)
    own, held = (
        Tokens(*(x[at] for x in tokens)) for at in (order[size:], order[:size])
    )
    line = fit(own)
    chance = cut(line, own)
    theta = threshold(line, chance)
    sure = held.entropy < theta
    # 1, 0 or -1 a token: what the rule is right about and "always best" is not.
    gain = (sure == held.best).astype(float) - held.best
    weights = np.ones(size)
    return {
        "threshold": theta,
        **line._asdict(),
        "cut": chance,
        "tokens": [n - size, size],
        "accuracy": float(np.mean(sure == held.best)),
        "always": float(np.mean(held.best)),
        "margin": float(1.96 * gain.std() / np.sqrt(size)),
        "pauses": float(np.mean(~sure)),
        "wrong": float(np.mean(~held.best[~sure])) if not sure.all() else 0.0,
        "caught": float(np.mean(~sure[~held.best])) if not held.best.all() else 0.0,
        "auc": calibration.auc(-held.entropy, held.best.astype(float), weights),
        "bins": [
            [int(inside.sum()), float(tokens.best[inside].mean())]
            if inside.any()
            else [0, 0.0]
            for low, high in itertools.pairwise(EDGES)
            for inside in [(low <= tokens.entropy) & (tokens.entropy < high)]
        ],
    }
