"""Static trees as text, and the tree that measured accuracies make best.

The code of a tree lists, level by level, how many children the nodes have: first the
root; then the nodes of depth 1, of depth 2, ..., each level in the order of its paths
and without its trailing zeros. `2 | 2,1` is the tree (0), (1), (0 0), (0 1), (1 0).
"""

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from decoding import tree
from models.errors import MethodError

Choices = tuple[tuple[int, ...], ...]


def shape(choices: Choices | str) -> tree.Shape:
    """The shape of a tree given by its choices or its code."""
    read: Callable = decode if type(choices) is str else tuple
    return tree.Shape(read(choices))


def decode(code: str) -> Choices:
    """The choices of a code, in the notation of Medusa's trees."""
    level: list[tuple[int, ...]] = [()]
    choices: list[tuple[int, ...]] = []
    for text in code.split("|"):
        try:
            counts = [int(count) for count in text.split(",")]
        except ValueError as error:
            raise MethodError(
                f"tree {code!r}: {text.strip()!r} is no list of numbers; write "
                "children of the root | of the nodes of depth 1, in order | ..."
            ) from error
        if len(counts) > len(level) or min(counts) < 0:
            raise MethodError(
                f"tree {code!r}: {text.strip()!r} names {len(counts)} nodes and the "
                f"level has {len(level)}"
            )
        pairs = zip(level, counts)
        level = [(*path, rank) for path, count in pairs for rank in range(count)]
        choices += level
    return tuple(choices)


def encode(choices: Choices) -> str:
    """The code of a tree whose siblings have the ranks 0, 1, 2, ..."""
    level: list[tuple[int, ...]] = [()]
    parts: list[str] = []
    while True:
        below = [sorted(c for c in choices if c[:-1] == p and c) for p in level]
        counts = [len(children) for children in below]
        while counts and counts[-1] == 0:
            counts.pop()
        if not counts:
            return " | ".join(parts)
        parts.append(",".join(map(str, counts)))
        level = [child for children in below for child in children]


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
