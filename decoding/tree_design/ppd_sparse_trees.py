"""PPD's dynamic sparse trees: their candidates, and the prompt tokens of each.

Chen et al., *Hardware-Aware Parallel Prompt Decoding*, 2024, arXiv 2405.18628, section
4.1, after the official builder. The state s of a round is the number of prompts that
the last accepted node carried: its tree is at most s deep. With hits a_d(r) by depth
and rank, a node is right with the product v of the hits on its path, and

    w(node) = v(node) - sum of v(children)          the path ends here
    V(s) = sum over the nodes of the tree of s of v          accepted drafts
    P(s, t) = sum of w over the nodes that carry t prompts   (the rest of 1: t = m)
    E = sum_s pi_s V(s),   pi = pi P                 accepted drafts a round

A budget bounds candidates and prompts together. Prompts are removed from the nodes
where that costs least: w (V(t) - V(t - 1)) for one prompt less of t.

After a round that accepts nothing, the next root follows the root, which carries all m
prompts, so state m comes next. The official builder (`official`) puts a round without
drafts, with a state of its own, between such a round and state m. It then expects fewer
tokens than the decoder commits.

The best budget depends on the machine (`fastest`): argmax of (1 + E) / seconds over
budgets, with the measured seconds of a round.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoding.tree_design import greedy_search, tree_code, tree_shape
from models.errors import MethodError

Hits = Sequence[Sequence[float]]
FIRST = 10  # candidates of state 1, whose laws are of one depth


class Sparse(NamedTuple):
    """Trees for every state, in the form that `drafters/ppd` takes."""

    choices: tree_code.Choices  # of all states together, for `topologies/static`
    plan: tuple[tuple[int, ...], ...]  # [state - 1][node]: prompts, -1: not there
    tokens: float  # 1 + E, expected a round
    shares: tuple[float, ...]  # pi of states 1 .. m; official: then the wasted state


def sparse(
    hits: Hits, budget: int, sizes: Sequence[int] = (), official: bool = False
) -> Sparse:
    """Build the best trees for a budget of candidates and prompts.

    Args:
        hits: `hits[d][r]`, the hits by depth and rank, of one depth per prompt.
        budget: candidates and their prompts; the root and its prompts are not counted.
        sizes: number of candidates of every state; without them the sizes of the
            states from 2 on are searched.
        official: expect a wasted round after one that accepts nothing, as the authors'
            builder does.

    Raises:
        MethodError: the budget or the sizes leave a candidate without a prompt.
    """
    m = len(hits)
    if not m or budget < m + 1:
        raise MethodError(
            f"budget={budget} for {m} prompts: a candidate and its prompts need {m + 1}"
        )
    if sizes:
        if len(sizes) != m:
            raise MethodError(f"{len(sizes)} sizes for {m} states: give one for each")
        return _build(hits, budget, sizes, official)
    low, high = max(budget // (m + 1), 1), max(budget // 2, 1)
    first_size = min(FIRST, high)
    combinations = itertools.product(range(low, high + 1), repeat=m - 1)
    candidates = (
        _build(hits, budget, (first_size, *rest), official) for rest in combinations
    )
    return max(candidates, key=lambda built: built.tokens)


def fastest(made: Mapping[int, Sparse], seconds: Mapping[int, float]) -> int:
    """Return the budget with the most tokens per second; of equals, the smallest.

    Args:
        made: budget -> its trees.
        seconds: budget -> measured time of a round with them.

    Raises:
        MethodError: a budget lacks trees or a positive time.
    """
    if not made or set(made) != set(seconds) or not min(seconds.values()) > 0:
        raise MethodError(
            f"seconds={dict(seconds)} for trees of budgets {sorted(made)}: give every "
            "budget the time of a round, above 0"
        )
    return max(sorted(made), key=lambda budget: made[budget].tokens / seconds[budget])


def values(hits: Hits, choices: tree_code.Choices) -> dict[tuple[int, ...], float]:
    """Compute v of every node: the product of the hits on its path."""
    return {c: float(np.prod([hits[d][r] for d, r in enumerate(c)])) for c in choices}


def ends(v: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """Compute w of every node: the chance that the accepted path ends there."""
    left = dict(v)
    for path, value in v.items():
        if len(path) > 1:
            left[path[:-1]] -= value
    return left


def _build(hits: Hits, budget: int, sizes: Sequence[int], official: bool) -> Sparse:
    """Build the trees of given sizes."""
    m = len(hits)
    grown = [
        greedy_search.by_accuracy(hits[: s + 1], n)[0] for s, n in enumerate(sizes)
    ]
    v = [values(hits, choices) for choices in grown]
    worth = [0.0, *(sum(each.values()) for each in v)]
    w = [ends(each) for each in v]
    carried = [_carried(each, worth, budget - len(each), m) for each in w]
    states = m + 1 if official else m
    moves = np.zeros((states, states))
    for s in range(m):
        for path, count in carried[s].items():
            moves[s, count - 1] += w[s][path]
        moves[s, states - 1] += 1 - sum(w[s].values())
    if official:
        moves[m, m - 1] = 1.0
    shares = stationary(moves)
    union = tuple({c for choices in grown for c in choices})
    shape = tree_shape.Shape(union)
    plan = tuple(
        (m, *(prompts.get(c, -1) for c in shape.choices)) for prompts in carried
    )
    expected = float(shares[:m] @ np.asarray(worth[1:]))
    return Sparse(shape.choices, plan, 1 + expected, tuple(shares.tolist()))


def _carried(
    w: dict[tuple[int, ...], float], worth: Sequence[float], room: int, m: int
) -> dict[tuple[int, ...], int]:
    """Assign prompts to every node: m at first, then fewer until all fit into `room`.

    Every node keeps at least one.
    """
    carried = dict.fromkeys(w, m)
    if room < len(w):
        raise MethodError(
            f"{len(w)} candidates leave room for {room} prompts: each needs one; use a "
            "greater budget or smaller sizes"
        )
    while sum(carried.values()) > room:
        loss = {
            path: w[path] * (worth[count] - worth[count - 1])
            for path, count in carried.items()
            if count > 1
        }
        least = min(loss, key=lambda path: (loss[path], [-r for r in path]))
        carried[least] -= 1
    return carried


def stationary(moves: np.ndarray) -> np.ndarray:
    """Return pi with pi = pi P; some state must be reachable from every state."""
    m = len(moves)
    system = np.concatenate([moves.T - np.eye(m), np.ones((1, m))])
    solution = np.linalg.lstsq(system, np.eye(m + 1)[m], rcond=None)[0]
    return np.maximum(solution, 0.0)
