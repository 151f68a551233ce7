"""Trees of a table against all paths of it, by hand."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import tables

DEPTHS, ABOVE, CHILDREN, BATCH = 4, 3, 3, 5


def random_table(seed: int, marginal: bool = False) -> tables.Table:
    """Laws whose children are distinct tokens in falling order; some are leaves."""
    rng = np.random.default_rng(seed)
    above = 1 if marginal else ABOVE
    shape = (BATCH, DEPTHS, above, CHILDREN)
    raw = np.sort(rng.normal(size=(*shape[:3], 7)), -1)[..., ::-1]
    logq = (raw - np.log(np.exp(raw).sum(-1, keepdims=True)))[..., :CHILDREN]
    tokens = np.argsort(rng.normal(size=(*shape[:3], 7)), -1)[..., :CHILDREN]
    low = 0 if marginal else -1
    following = rng.integers(low, above, shape)
    following[:, -1] = -1
    return tables.Table(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(logq, jnp.float32),
        jnp.asarray(following, jnp.int32),
    )


def paths(table: tables.Table, row: int) -> dict[tuple, float]:
    """The value of every path of tokens of one row of a batch."""
    tokens, logq, following = (np.asarray(x)[row] for x in table)
    found: dict[tuple, float] = {}

    def walk(path: tuple, value: float, depth: int, at: int) -> None:
        for k in range(CHILDREN):
            step = (*path, int(tokens[depth, at, k]))
            found[step] = value + float(logq[depth, at, k])
            below = int(following[depth, at, k])
            if depth + 1 < DEPTHS and below >= 0:
                walk(step, found[step], depth + 1, below)

    walk((), 0.0, 0, 0)
    return found


def grown(tokens, parents, there, row: int) -> list[tuple]:
    """The path of every node of a tree but the root, in the tree's order."""
    tokens, parents, there = (np.asarray(x)[row] for x in (tokens, parents, there))
    assert there[0] and parents[0] == -1
    full = {0: ()}
    for i in range(1, len(tokens)):
        if there[i]:
            assert parents[i] < i and there[parents[i]]
            full[i] = (*full[parents[i]], int(tokens[i]))
    return [path for i, path in full.items() if i]


@pytest.mark.parametrize("marginal", [False, True], ids=["conditioned", "marginal"])
@pytest.mark.parametrize("nodes", [4, 9, 17])
def test_the_best_tree_of_its_size(nodes, marginal):
    table = random_table(nodes, marginal)
    best = jax.jit(tables.best_first, static_argnums=1)
    found = best(table, nodes)
    worse = tables.Table(table.tokens, table.logprobs[:, ::-1], table.following)
    planted = best(worse, nodes)  # the laws of the other depths
    differs = []
    for row in range(BATCH):
        values = paths(table, row)
        wanted = heapq.nlargest(nodes - 1, values, key=values.get)
        order = grown(*found, row)
        assert order == sorted(order, key=lambda p: -values[p])
        assert sorted(order) == sorted(wanted)
        differs.append(sorted(grown(*planted, row)) != sorted(wanted))
    assert any(differs)


def test_a_table_that_is_too_small_leaves_places_empty():
    table = random_table(3)
    found = jax.jit(tables.best_first, static_argnums=1)(table, 400)
    for row in range(BATCH):
        order = grown(*found, row)
        assert len(order) == len(set(order)) == len(paths(table, row)) < 399


@pytest.mark.parametrize("fanout", [None, (3, 1, 2, 3)], ids=["all", "by depth"])
def test_a_node_gets_all_its_children_at_once(fanout):
    """Planted: the fan-outs of the other depths."""
    table, nodes = random_table(1), 14
    grow = jax.jit(tables.expanded, static_argnums=1)

    def given(numbers):
        if numbers is None:
            return None
        return jnp.broadcast_to(jnp.asarray(numbers, jnp.int32), (BATCH, DEPTHS))

    found = grow(table, nodes, given(fanout))
    planted = grow(table, nodes, given((1, 2, 3, 3)))
    differs = []
    for row in range(BATCH):
        wanted = by_hand(table, row, nodes, fanout or (CHILDREN,) * DEPTHS)
        assert grown(*found, row) == wanted
        differs.append(grown(*planted, row) != wanted)
    assert any(differs)


def by_hand(table, row: int, nodes: int, fanout) -> list[tuple]:
    """Open the best leaf with a heap, as the paper's code does."""
    tokens, logq, following = (np.asarray(x)[row] for x in table)
    heap, order = [(0.0, 0, (), 0, 0)], []
    while heap and len(order) < nodes - 1:
        value, _, path, depth, at = heapq.heappop(heap)
        for k in range(fanout[depth]):
            if len(order) == nodes - 1:
                break
            step = (*path, int(tokens[depth, at, k]))
            order.append(step)
            below = int(following[depth, at, k])
            if below >= 0:
                own = value - float(logq[depth, at, k])
                heapq.heappush(heap, (own, len(order), step, depth + 1, below))
    return order
