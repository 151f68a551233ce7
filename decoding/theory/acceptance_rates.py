"""Acceptance rates of the verifiers at one node: closed forms, in float64.

Each function gives `P(a draft is accepted)` for a target law p and `k` drafts of law q
at one node. The upper bound for all verifiers is in
`decoding/theory/optimal_transport.py`. Plain functions, for tests and reports; p and q
are float64[V].

    rejection           1 - TV(p, q)
    recursive, IID      1 - prod_i (1 - a_i),  a_i = sum_x min(P_i(x), q(x)),
                        P_1 = p,  P_{i+1} = norm((P_i - q)+)
    recursive, without  the same with D_i in place of q, in expectation over what was
                        rejected: x_i ~ norm((D_i - P_i)+)
    K-SEQ               1 - (1 - beta(rho))^k at the root rho
    matched, IID        sum_x p(x) (1 - (1 - q(x))^k)
    matched, without    the same in expectation over the drafts drawn before
    point               p(C), C the k likeliest tokens of q
    coupled, k = 1      sum_x 1 / sum_y max(p(y) / p(x), q(y) / q(x))

The letters are those of `verifiers/recursive_rejection` and `verifiers/spectr`.
"""

from typing import NamedTuple

import numpy as np


class Value(NamedTuple):
    """An expectation, and its standard error if it was averaged over draws."""

    mean: float
    error: float = 0.0


def rejection(p: np.ndarray, q: np.ndarray) -> Value:
    """Return the rate of one draft.

    Source: Leviathan et al., 2023, arXiv 2211.17192, theorem 3.5.
    """
    return Value(float(np.minimum(p, q).sum()))


def recursive(p: np.ndarray, q: np.ndarray, k: int) -> Value:
    """Return the rate of recursive rejection of `k` drafts drawn with replacement."""
    left, missed = p, 1.0
    for _ in range(k):
        missed *= 1 - np.minimum(left, q).sum()
        rest = np.maximum(left - q, 0)
        left = rest / rest.sum() if rest.sum() > 0 else left
    return Value(float(1 - missed))


def recursive_without(
    p: np.ndarray, q: np.ndarray, k: int, rng: np.random.Generator, paths: int = 256
) -> Value:
    """Return the rate of recursive rejection of drafts drawn without replacement.

    The rate is a mean over random paths of rejected drafts. Given the drafts rejected
    before, a test's chance is summed over all tokens. One draft needs no path.

    Args:
        p: the target's law.
        q: the drafts' law.
        k: drafts per node.
        rng: draws the paths.
        paths: number of paths.
    """
    paths = paths if k > 1 else 1
    left, law = (np.tile(x, (paths, 1)) for x in (p, q))
    missed = np.ones(paths)
    for _ in range(k):
        missed *= 1 - np.minimum(left, law).sum(1)
        drawn = _pick(np.maximum(law - left, 0), rng)
        rest = np.maximum(left - law, 0)
        mass = rest.sum(1, keepdims=True)
        left = np.where(mass > 0, rest / np.where(mass > 0, mass, 1), left)
        law = _without(law, drawn)
    return _mean(1 - missed)


def k_seq(p: np.ndarray, q: np.ndarray, k: int) -> Value:
    """Return the rate of SpecTr's K-SEQ at the division factor that makes it exact."""

    def accept(rho: float) -> tuple[float, float]:
        beta = min(float(np.minimum(q, p / rho).sum()), 1.0)
        return 1 - (1 - beta) ** k, beta

    low, high = 1.0, float(k)
    for _ in range(60):
        middle = (low + high) / 2
        chance, beta = accept(middle)
        low, high = (middle, high) if chance > middle * beta else (low, middle)
    return Value(accept(high)[0])


def matched(p: np.ndarray, q: np.ndarray, k: int) -> Value:
    """Return the chance that the target's own draw is among `k` independent drafts."""
    return Value(float((p * (1 - (1 - q) ** k)).sum()))


def matched_without(
    p: np.ndarray, q: np.ndarray, k: int, rng: np.random.Generator, paths: int = 256
) -> Value:
    """Return the chance that the target's own draw is among drafts without replacement.

    Args:
        p: the target's law.
        q: the drafts' law.
        k: drafts per node.
        rng: draws the paths.
        paths: number of random paths of drafts that are averaged.
    """
    paths = paths if k > 1 else 1
    law, rates = np.tile(q, (paths, 1)), np.zeros(paths)
    for _ in range(k):
        rates += law @ p
        law = _without(law, _pick(law, rng))
    return _mean(rates)


def point(p: np.ndarray, q: np.ndarray, k: int) -> Value:
    """Return the rate of the `k` likeliest tokens of q, drafted by rule.

    No verifier accepts more of them.
    """
    return Value(float(p[np.argsort(-q, kind="stable")[:k]].sum()))


def coupled(p: np.ndarray, q: np.ndarray) -> Value:
    """Return the rate of one draft by the target's own Gumbel noise, in O(V log V).

    Token x wins both races if its clock E_x is before every E_y max(p(y) / p(x),
    q(y) / q(x)). In the order of p / q, the maximum is p's ratio for y after x and q's
    ratio for y before x. The rate is at least (1 - TV) / (1 + TV): Daliri et al., arXiv
    2408.07978.
    """
    both = (p > 0) & (q > 0)  # tokens that can win both races
    outside = float(p[(p > 0) & (q == 0)].sum())  # races that x can only lose
    below = float(q[(q > 0) & (p == 0)].sum())
    p, q = p[both], q[both]
    order = np.argsort(p / q)
    p, q = p[order], q[order]
    ahead = below + np.cumsum(q) - q
    behind = outside + np.cumsum(p[::-1])[::-1]
    return Value(float((1 / (behind / p + ahead / q)).sum()))


def _pick(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one token per row by weight, int[paths]; -1 in a row of zero weight."""
    total = np.cumsum(weight, 1)
    coin = rng.random(len(weight)) * total[:, -1]
    drawn = np.minimum((total <= coin[:, None]).sum(1), weight.shape[1] - 1)
    return np.where(total[:, -1] > 0, drawn, -1)


def _without(law: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Remove the drawn tokens from the laws and renormalise; all 0 if none is left."""
    law = np.where(np.arange(law.shape[1]) == drawn[:, None], 0, law)
    mass = law.sum(1, keepdims=True)
    return np.where(mass > 1e-12, law / np.where(mass > 0, mass, 1), 0)


def _mean(values: np.ndarray) -> Value:
    """Return the mean of the paths and its standard error."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return Value(float(values.mean()), float(error))
