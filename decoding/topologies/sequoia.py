"""Sequoia: the best static tree within a budget, under measured acceptance rates.

Chen, May, Svirschevski, Huang, Ryabinin, Jia, Chen, *Sequoia: Scalable, Robust, and
Hardware-aware Speculative Decoding*, 2024, arXiv 2402.12374, section 3 (tree
construction). a_b is the chance that the b-th sibling, drawn without replacement, is
the one accepted. Of all trees of n nodes and l levels whose root has b children the
best one yields

    T(1, l, 0) = 1
    T(n, l, b) = max over m < n of  T(m, l, b - 1) + a_b max_c T(n - m, l - 1, c)

tokens a round, if acceptance depends on the rank alone. n → `budget`, root included; l
→ `depth`; a → `acceptance`. The verifier is `recursive_rejection`.

Deviations from the paper: none in the tree. For greedy decoding the children are the
best tokens, and under the coupled verifier those that the position's noise chooses.

Cost: the dynamic programme runs on the host when the method is built, O(n^2 l b). Per
level as `static`.
"""

import numpy as np

from decoding import base
from decoding.catalogue import Card
from decoding.topologies import static
from decoding.tree_building import child_sampling
from models.errors import MethodError

CARD = Card(
    paper="Sequoia, arXiv 2402.12374",
    guarantee=base.LAW,
    family="static tree",
    needs=("draw",),
    draws=(base.NO_REPLACE, base.POINT, base.COUPLED),
    examples={"acceptance": (0.5, 0.2, 0.1), "budget": 7, "depth": 3},
    sources=("chen2024sequoia",),
)


def topology(
    acceptance: tuple[float, ...],
    budget: int = 64,
    depth: int = 10,
    draw: str = base.NO_REPLACE,
) -> base.Topology:
    """Build the best tree for measured acceptance rates.

    Args:
        acceptance: measured chance of each sibling rank to be the one accepted; the
            chances sum to at most 1.
        budget: nodes at most, root included.
        depth: levels of drafts at most.
        draw: one of `CARD.draws`.
    """
    rates = np.asarray(acceptance, np.float64)
    if not len(rates) or rates.min() < 0 or rates.sum() > 1 + 1e-6:
        raise MethodError(
            f"acceptance={acceptance}: give the chance of each rank to be the one "
            "accepted; the chances must sum to at most 1"
        )
    if budget < 2 or depth < 1:
        raise MethodError(
            f"budget={budget}, depth={depth}: use budget >= 2 and depth >= 1"
        )
    child_sampling.check(draw, CARD.draws)
    return static.topology(best(rates, budget, depth)[0], draw)


Choices = tuple[tuple[int, ...], ...]


def best(rates: np.ndarray, budget: int, depth: int) -> tuple[Choices, float]:
    """Find the best tree of at most `budget` nodes, and its tokens per round.

    `rates` float64[R] are the acceptance rates by sibling rank.
    """
    ranks = len(rates)
    # table[l, n, b]: T, -inf if no such tree exists; split: the m that attains it.
    table = np.full((depth + 1, budget + 1, ranks + 1), -np.inf)
    split = np.zeros(table.shape, int)
    table[:, 1, 0] = 1.0
    for level in range(1, depth + 1):
        below = table[level - 1].max(1)  # best subtree, by its number of nodes
        for b in range(1, ranks + 1):
            before = table[level, :, b - 1]
            for n in range(b + 1, budget + 1):
                m = np.arange(1, n)
                totals = before[m] + rates[b - 1] * below[n - m]
                split[level, n, b] = m[totals.argmax()]
                table[level, n, b] = totals.max()
    n = int(table[depth].max(1).argmax())

    def build(level: int, n: int, path: tuple[int, ...]) -> list[tuple[int, ...]]:
        choices = []
        b = int(table[level, n].argmax())
        while b:
            m = int(split[level, n, b])
            child = (*path, b - 1)
            choices += [child, *build(level - 1, n - m, child)]
            n, b = m, b - 1
        return choices

    return tuple(sorted(build(depth, n, ()))), float(table[depth, n].max())
