"""Trees of any shape against the same things done node by node in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, tree
from decoding.loops import stats
from models.base import pack_bits

ROWS, NODES = 4, 70  # three words of ancestor bits


def random_trees(seed: int) -> base.TokenTree:
    """Parents anywhere before a node; a fifth of the nodes are no candidates."""
    rng = np.random.default_rng(seed)
    parents = np.array(
        [[-1, *(rng.integers(i) for i in range(1, NODES))] for _ in range(ROWS)]
    )
    kind = np.where(rng.random((ROWS, NODES)) < 0.2, base.AUX, base.CANDIDATE)
    kind[:, 0] = base.CANDIDATE
    tokens = rng.integers(0, 9, (ROWS, NODES))
    arrays = [jnp.asarray(x, jnp.int32) for x in (tokens, parents, kind)]
    return base.TokenTree(*arrays, depth=NODES - 1)


def path_of(parents: np.ndarray, node: int) -> list[int]:
    """The nodes from below the root down to `node`."""
    path = []
    while node > 0:
        path.append(int(node))
        node = parents[node]
    return path[::-1]


def differences(drawn: base.TokenTree) -> int:
    """How many nodes have other depths or ancestors than a climb by hand gives."""
    depth = np.asarray(tree.depths(drawn))
    bits = np.asarray(tree.ancestors(drawn))
    wrong = 0
    for row, parents in enumerate(np.asarray(drawn.parents)):
        for node in range(NODES):
            path = path_of(parents, node)
            seen = np.zeros(NODES, bool)
            seen[[0, *path]] = True
            packed = np.asarray(pack_bits(jnp.asarray(seen)))
            wrong += depth[row, node] != len(path)
            wrong += not np.array_equal(bits[row, node], packed)
    return int(wrong)


@pytest.mark.parametrize("seed", [0, 1])
def test_depths_and_ancestors(seed):
    assert differences(random_trees(seed)) == 0


def test_fault_a_climb_that_ends_early():
    """Planted: `depth` promises less than the tree has."""
    assert differences(random_trees(0).replace(depth=3)) > 0


def test_ranks_by_hand():
    """0 has children 1, 2 (no candidate), 3; 3 has 4 and 5. Path 3, 5: ranks 1, 1."""
    drawn = base.TokenTree(
        jnp.zeros((2, 6), jnp.int32),
        jnp.asarray([[-1, 0, 0, 0, 3, 3]] * 2, jnp.int32),
        jnp.asarray([[1, 1, 2, 1, 1, 1]] * 2, jnp.int32).at[:, 2].set(base.AUX),
        depth=2,
    )
    path = jnp.asarray([[3, 5], [1, 0]], jnp.int32)
    found = tree.ranks(drawn, path, jnp.asarray([2, 1]), 3)
    assert found.tolist() == [[0, 2, 0], [1, 0, 0]]
    assert tree.ranks(drawn, path, jnp.asarray([0, 0]), 3).sum() == 0


def test_ranks_are_of_candidates_and_pooled():
    drawn = random_trees(2)
    parents, kind = np.asarray(drawn.parents), np.asarray(drawn.kind)
    node = np.array(
        [np.flatnonzero(kind[r] == base.CANDIDATE)[-1] for r in range(ROWS)]
    )
    paths = [path_of(parents[r], node[r]) for r in range(ROWS)]
    wanted = np.zeros((ROWS, stats.RANKS), int)
    path = np.zeros((ROWS, NODES - 1), np.int32)
    for r, nodes in enumerate(paths):
        path[r, : len(nodes)] = nodes
        for n in nodes:
            older = (parents[r][:n] == parents[r][n]) & (kind[r][:n] == base.CANDIDATE)
            wanted[r, min(older.sum(), stats.RANKS - 1)] += 1
    count = jnp.asarray([len(p) for p in paths])
    found = jax.jit(tree.ranks, static_argnums=3)(
        drawn, jnp.asarray(path), count, stats.RANKS
    )
    assert found.tolist() == wanted.tolist()
