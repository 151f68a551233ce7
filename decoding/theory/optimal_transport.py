"""The upper bound on any exact verifier's acceptance at a node: optimal transport.

Sun, Suresh, Ro, Beirami, Jain, Yu, *SpecTr*, 2023, arXiv 2310.15141. Couple the
target's token Y ~ p with the drafts X_1, ..., X_k. By max-flow = min-cut, the best
coupling has P(Y is one of the drafts) equal to

    OPT = min over sets H of tokens  of  p(H) + 1 - Q(H),   Q(H) = P(all drafts in H)

One draft gives 1 - TV(p, q). Plain functions in float64, for tests and reports.
"""

import itertools

import numpy as np

from decoding import base
from models.errors import MethodError

LARGEST = 12  # tokens whose subsets are enumerated


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """Return the total variation distance of the laws `p` and `q` float[V]."""
    return float(abs(np.asarray(p) - np.asarray(q)).sum() / 2)


def acceptance(p: np.ndarray, q: np.ndarray, k: int, draw: str = base.IID) -> float:
    """Return OPT for `k` drafts at one node.

    IID takes any V: if a is in the best H and b is not, p(a)/q(a) <= p(b)/q(b), because
    s^k is convex in s = q(H). So H is a prefix of the tokens in the order of p/q.

    Args:
        p: the target's law, float[V].
        q: the drafts' law, float[V].
        k: number of drafts.
        draw: IID or NO_REPLACE; the latter takes V <= `LARGEST`.

    Raises:
        MethodError: `k` < 1, another draw, or too many tokens without replacement.
    """
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    if k < 1:
        raise MethodError(f"k={k}: use at least 1 draft")
    if draw == base.IID:
        order = np.argsort(np.where(q > 0, p / np.where(q > 0, q, 1.0), np.inf))
        mass = np.concatenate([[0.0], np.cumsum(p[order])])
        inside = np.concatenate([[0.0], np.cumsum(q[order])])
        return float((mass + 1 - np.minimum(inside, 1) ** k).min())
    if draw != base.NO_REPLACE:
        raise MethodError(
            f"draw={draw!r}: the bound is for sampled drafts, {base.IID!r} or "
            f"{base.NO_REPLACE!r} (a point set C is accepted with p(C) at best)"
        )
    if len(p) > LARGEST:
        raise MethodError(
            f"{len(p)} tokens have too many subsets: draws without replacement take at "
            f"most {LARGEST} tokens; use {base.IID!r} draws or fewer tokens"
        )
    chances = _ordered_draws(q, k)
    best = 1.0
    for bits in itertools.product([False, True], repeat=len(p)):
        inside = np.array(bits)
        held = sum(c for drawn, c in chances.items() if inside[list(drawn)].all())
        best = min(best, float(p[inside].sum() + 1 - held))
    return best


def _ordered_draws(q: np.ndarray, k: int) -> dict[tuple[int, ...], float]:
    """Map every sequence of `k` draws without replacement to its probability.

    A law of fewer than `k` tokens gives shorter sequences.
    """
    support = np.flatnonzero(q > 0).tolist()
    chances = {}
    for drawn in itertools.permutations(support, min(k, len(support))):
        chance, left = 1.0, 1.0
        for x in drawn:
            chance, left = chance * q[x] / left, left - q[x]
            if left <= 0:
                break
        chances[drawn] = chance
    return chances
