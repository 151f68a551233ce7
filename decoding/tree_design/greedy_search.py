"""Find the static tree that measured accuracies make best."""

import heapq
from collections.abc import Sequence

import numpy as np

from decoding.tree_design.tree_code import Choices
from models.errors import MethodError


def by_accuracy(
    hits: Sequence[Sequence[float]], drafts: int, children: int = 10
) -> tuple[Choices, float]:
    """The tree of `drafts` nodes that Medusa's greedy search finds; tokens a round.

    Cai et al., Medusa, 2024, arXiv 2401.10774, section 2.3.3. `hits[d][r]`: how often
    the candidate of rank r at depth d + 1 is the target's token, by measurement. A path
    is taken to be right with the product of its hits. From the first child of the root
    on, the best neighbour is added: the next sibling, of rank < `children`, or the
    first child. Where hits fall with the rank these are the best paths there are.
    """
    table = [np.asarray(row, np.float64)[:children] for row in hits]
    if drafts < 1 or not table or not all(len(row) for row in table):
        raise MethodError(
            f"drafts={drafts} of {len(table)} measured depths: give one of both"
        )
    chosen: list[tuple[int, ...]] = []
    waiting: list[tuple[float, int, tuple[int, ...]]]
    waiting = [(-float(table[0][0]), 1, (0,))]
    while waiting and len(chosen) < drafts:
        value, depth, path = heapq.heappop(waiting)
        chosen.append(path)
        own = table[depth - 1]
        rank = path[-1]
        if rank + 1 < len(own):
            before = np.prod([table[d][r] for d, r in enumerate(path[:-1])])
            after = float(before * own[rank + 1])
            heapq.heappush(waiting, (-after, depth, (*path[:-1], rank + 1)))
        if depth < len(table):
            below = float(value * table[depth][0])
            heapq.heappush(waiting, (below, depth + 1, (*path, 0)))
    total = 1 + sum(
        float(np.prod([table[d][r] for d, r in enumerate(path)])) for path in chosen
    )
    return tuple(sorted(chosen, key=lambda p: (len(p), p))), total
