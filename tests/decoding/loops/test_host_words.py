"""Texts for the host: the nodes of a draft and of a search's block, as trees."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.hypotheses.drafts import Block
from decoding.loops import host_words

ROWS = base.State(jnp.array([[7, 2], [8, 1]], jnp.int32))
TRANSFORM = types.SimpleNamespace(numbers=(("host/a", lambda state: state.row),))
PROGRAM = types.SimpleNamespace(transform=TRANSFORM)
FREE = types.SimpleNamespace(transform=types.SimpleNamespace(numbers=()))


def ints(*values) -> jnp.ndarray:
    return jnp.array(values, jnp.int32)


def state(**fields):
    fields = {"transform": ROWS, "done": jnp.array([False, True]), **fields}
    return types.SimpleNamespace(
        tokens=ints([1, 2], [3, 4]), length=ints(2, 1), **fields
    )


def test_nodes_of_a_draft():
    """Padding and rows that are done are not asked for; planted: neither is seen."""
    kind = ints([1, 1, 0], [1, 1, 1])
    nodes = base.TokenTree(
        ints([2, 5, 6], [4, 5, 6]), ints([-1, 0, 0], [-1, 0, 1]), kind
    )
    texts = host_words.of_tree(PROGRAM, state(), nodes)
    assert texts.at.tolist() == [[0, 1, -1], [-1, -1, -1]]
    assert texts.numbers["host/a"].tolist() == [[7, 2], [8, 1]]
    assert (texts.nodes == nodes.tokens).all() and texts.length.tolist() == [2, 1]
    whole = host_words.of_tree(
        PROGRAM, state(done=jnp.zeros(2, bool)), nodes.replace(kind=kind * 0 + 1)
    )
    assert whole.at.tolist() == [[0, 1, 2]] * 2


def path(texts: host_words.Texts, row: int, node: int) -> list[int]:
    tokens = []
    while node > 0:
        tokens.append(int(texts.nodes[row, node]))
        node = int(texts.parents[row, node])
    return tokens[::-1]


@pytest.mark.parametrize("fault", [False, True])
def test_nodes_of_a_search(fault):
    """Two lanes at nodes of one tree, a draft below each, one below a draft.

    Planted: a draft's parent is read as a node of the tree.
    """
    tree = types.SimpleNamespace(
        tokens=ints([2, 10, 11, 12, 0]), parents=ints([-1, 0, 0, 2, -1])
    )
    run = Block(
        tokens=ints([12, 10, 20, 21, 22]),
        depth=ints([2, 1, 3, 2, 4]),
        there=jnp.array([[True, True, True, True, False]]),
        parents=ints([0, 1, 2]),
        slot=ints([0] * 5),
        seen=jnp.zeros((1, 5, 1), jnp.uint32),
    )
    rows = state(transform=base.State(ROWS.row[:1]))
    search = types.SimpleNamespace(rows=rows, nodes=tree, lanes=ints([3, 1]))
    texts = host_words.of_lanes(PROGRAM, search, run)
    if fault:
        parents = texts.parents.at[:, 5:].set(run.parents)
        texts = texts._replace(parents=parents)
    assert texts.at.tolist() == [[3, 1, 5, 6, -1]]
    paths = [path(texts, 0, node) for node in (3, 1, 5, 6, 7)]
    expected = [[11, 12], [10], [11, 12, 20], [10, 21], [11, 12, 20, 22]]
    assert (paths == expected) != fault


def test_programs_without_masks_carry_no_texts():
    assert host_words.of_tree(FREE, state(), base.TokenTree(*[ints([0])] * 3)) is None
    assert host_words.of_lanes(FREE, None, None) is None
    assert np.asarray(ROWS.row).shape == (2, 2)
