"""DySpec: the greedy tree against a heap, the threshold form, and the law."""

import heapq

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.topologies import dyspec
from decoding.verifiers import recursive_rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

VERIFIER = recursive_rejection.verifier()


def order(nodes: base.TokenTree, row: int) -> dict[tuple, list[int]]:
    """The drafts below every path, in draw order."""
    below: dict[tuple, list[int]] = {}
    for path in kit.paths(nodes, row):
        below.setdefault(path[:-1], []).append(path[-1])
    return below


def heap(below: dict[tuple, list[int]], nodes: int, depth: int) -> list[tuple]:
    """The paper's greedy algorithm, token by token, with the draws of `below`."""
    slots = [(-1.0, (), 0, 1.0)]
    found: list[tuple] = []
    while len(found) < nodes - 1:
        value, path, rank, left = heapq.heappop(slots)
        token = below[path][rank]
        q = kit.Q[path[-1] if path else 0, token] / left  # R(token)
        found.append((*path, token))
        if len(path) + 1 < depth:
            heapq.heappush(slots, (value * q, (*path, token), 0, 1.0))
        heapq.heappush(slots, (value * (1 - q), path, rank + 1, left * (1 - q)))
    return found


def test_greedy_is_the_heap_s():
    """20 rows: a tree of 6 nodes, drawn apart and together, is the heap's tree.

    The whole tree of four levels is grown to know what the heap would have drawn; the
    keys, and so the draws, of the levels are the same in both.
    """
    whole = kit.grown(dyspec.topology(85, 3, 64, draw=base.POINT), 1, kit.Q, 0)
    assert len(kit.paths(whole)) == 84
    small = dyspec.topology(6, 3, 5)
    large = dyspec.topology(16, 3, 5)
    cut, full = (kit.grown(t, 20, kit.Q, 0) for t in (small, large))
    for row in range(20):
        assert sorted(heap(order(full, row), 6, 3)) == sorted(kit.paths(cut, row))


def test_threshold_by_hand():
    """A slot exists while 1 - (what its earlier siblings weigh) times the value of its
    parent is at least t; and where there is none, no draft call is made."""
    least = 0.2
    topology = dyspec.topology(25, 3, 8, least)
    nodes = kit.grown(topology, 200, kit.Q, 0)
    calls = np.asarray(nodes.calls)
    for row in range(200):
        below, deepest = order(nodes, row), 0
        for path, drawn in below.items():
            value = kit.value(path)
            law = kit.Q[path[-1] if path else 0]
            for rank in range(len(drawn) + 1):
                slot = value * (1 - law[drawn[:rank]].sum())
                assert (slot >= least) == (rank < len(drawn)) or len(path) == 3
            deepest = max(deepest, len(path))
        assert calls[row] == deepest
    # The paths of probability >= t are always drawn: (1), (2) and (1 1).
    assert (calls == 2).all()


@pytest.mark.parametrize(("nodes", "width", "least"), [(4, 3, 0.0), (9, 4, 0.15)])
def test_law(nodes, width, least):
    topology = dyspec.topology(nodes, 2, width, least)
    accepted, fit = kit.accepted_and_fit(topology, VERIFIER)
    assert fit > kit.LEVEL and accepted > 0.3


def test_fault_a_slot_that_looks_at_its_draft(monkeypatch):
    """Planted: of the drafts of a level the likeliest are kept, not the best slots."""
    sound = dyspec.node_ranking.best

    def likeliest(slot, width):
        q = jnp.log(jnp.asarray(kit.Q, jnp.float32))[0]
        ranked = jnp.where(slot > -jnp.inf, 0.0, -jnp.inf) + q[drawn["tokens"]]
        local, rank, value = sound(ranked, 2)
        held = jnp.where(value > -jnp.inf, 0.0, -jnp.inf)
        return local, rank, jnp.pad(held, ((0, 0), (0, width - 2)), constant_values=-9)

    drawn = {}
    children = dyspec.node_ranking.children

    def remember(values, k):
        best, drawn["tokens"] = children(values, k)
        return best, drawn["tokens"]

    def padded(slot, width):
        local, rank, value = likeliest(slot, width)
        grow = ((0, 0), (0, width - local.shape[1]))
        value = jnp.where(value == -9, -jnp.inf, value)
        return jnp.pad(local, grow), jnp.pad(rank, grow), value

    monkeypatch.setattr(dyspec.node_ranking, "children", remember)
    monkeypatch.setattr(dyspec.node_ranking, "best", padded)
    assert kit.accepted_and_fit(dyspec.topology(4, 1, 3), VERIFIER)[1] < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="nodes=1"):
        dyspec.topology(1)
    with pytest.raises(MethodError, match="threshold=2"):
        dyspec.topology(threshold=2.0)
    with pytest.raises(MethodError, match="iid"):
        dyspec.topology(draw=base.IID)
