"""Greedy search for the best static tree under measured accuracies."""

import heapq
from collections.abc import Sequence

import numpy as np

from decoding.tree_design.tree_code import Choices
from models.errors import MethodError


def by_accuracy(
    hits: Sequence[Sequence[float]], drafts: int, children: int = 10
) -> tuple[Choices, float]:
    """Search a tree of `drafts` nodes greedily, as Medusa does.

    Cai et al., *Medusa*, 2024, arXiv 2401.10774, section 2.3.3. A path counts as right
    with the product of its hits. The search begins with the root's first child and
    repeatedly adds the best neighbour: a next sibling or a first child. If hits fall
    with the rank, it finds the best paths.

    Args:
        hits: `hits[d][r]` is the measured share of candidates of rank r at depth d + 1
            that are the target's token.
        drafts: number of nodes, without the root.
        children: siblings per node at most.

    Returns:
        The tree's choices, and its expected tokens per round.

    Raises:
        MethodError: no drafts, or no hits.
    """
    table = [np.asarray(row, np.float64)[:children] for row in hits]
    if drafts < 1 or not table or not all(len(row) for row in table):
        raise MethodError(
            f"drafts={drafts} of {len(table)} measured depths: use at least 1 draft "
            "and hits of at least 1 depth"
        )
    chosen: list[tuple[int, ...]] = []
    waiting: list[tuple[float, int, tuple[int, ...]]]
    waiting = [(-float(table[0][0]), 1, (0,))]
    while waiting and len(chosen) < drafts:
        value, depth, path = heapq.heappop(waiting)
        chosen.append(path)
        ranks = table[depth - 1]
        rank = path[-1]
        if rank + 1 < len(ranks):
            before = np.prod([table[d][r] for d, r in enumerate(path[:-1])])
            after = float(before * ranks[rank + 1])
            heapq.heappush(waiting, (-after, depth, (*path[:-1], rank + 1)))
        if depth < len(table):
            below = float(value * table[depth][0])
            heapq.heappush(waiting, (below, depth + 1, (*path, 0)))
    total = 1 + sum(
        float(np.prod([table[d][r] for d, r in enumerate(path)])) for path in chosen
    )
    return tuple(sorted(chosen, key=lambda p: (len(p), p))), total
