"""EAGLE-2's tree against the paper's expansion and reranking, done by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.topologies import eagle2
from decoding.verifiers import recursive_rejection, sample_then_match
from models.errors import MethodError
from tests.decoding.topologies import kit


def by_hand(nodes: int, depth: int, k: int) -> list[tuple[int, ...]]:
    """Expand the k best of a level by k tokens each; of all, keep the best."""

    def best(path):
        law = kit.Q[path[-1] if path else 0]
        return [(*path, int(x)) for x in np.argsort(-law, kind="stable")[:k]]

    level, pool = best(()), []
    pool += level
    for _ in range(depth - 1):
        frontier = sorted(level, key=kit.value, reverse=True)[:k]
        level = [path for parent in frontier for path in best(parent)]
        pool += level
    return sorted(pool, key=kit.value, reverse=True)[: nodes - 1]


@pytest.mark.parametrize("shape", [(8, 3, 2), (6, 2, 3), (15, 4, 3), (7, 3, 4)])
def test_worked_example(shape):
    nodes = kit.grown(eagle2.topology(*shape), 2, kit.Q, 0)
    assert nodes.tokens.shape[1] == shape[0] and nodes.draw == base.POINT
    for row in range(2):
        assert sorted(kit.paths(nodes, row)) == sorted(by_hand(*shape))


def test_one_token_a_node_is_a_chain():
    nodes = kit.grown(eagle2.topology(5, 4, 1), 1, kit.Q, 0)
    assert np.asarray(nodes.parents[0]).tolist() == [-1, 0, 1, 2, 3]


def test_where_the_draft_s_keys_are():
    """Two nodes a level are run, in the order of their confidence, after the root."""
    topology = eagle2.topology(10, 3, 2)
    assert topology.run == (1, 2, 2, 0) and topology.widths == (1, 2, 4, 4)
    nodes = kit.grown(topology, 1, kit.Q, 0)
    assert nodes.slots[0].tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1, -1]
    assert set(nodes.parents[0].tolist()) <= {-1, 0, 1, 2, 3, 4}


def test_a_small_vocabulary():
    """Five children of a node and four tokens: the fifth is padding, never kept."""
    nodes = kit.grown(eagle2.topology(30, 2, 5), 1, kit.Q, 0)
    found = kit.paths(nodes)
    assert len(found) == len(set(found)) == 4 + 16


@pytest.mark.parametrize("verifier", [recursive_rejection, sample_then_match])
def test_law(verifier):
    topology = eagle2.topology(7, 3, 2)
    accepted, fit = kit.accepted_and_fit(topology, verifier.verifier())
    assert fit > kit.LEVEL and accepted > 0.3


def test_fault_drafts_taken_for_samples():
    """Planted: the likeliest tokens are tested as if they were drawn from q, as in the
    first release of the method."""
    sound = recursive_rejection.verifier()
    laws = jnp.log(jnp.asarray(kit.Q, jnp.float32))

    def verify(key, state, nodes, target):
        as_drawn = nodes.replace(logits=laws[nodes.tokens], draw=base.NO_REPLACE)
        return sound.verify(key, state, as_drawn, target)

    faulty = sound._replace(verify=verify)
    assert kit.accepted_and_fit(eagle2.topology(7, 3, 2), faulty)[1] < kit.FAULT


def test_bad_arguments():
    with pytest.raises(MethodError, match="nodes=8"):
        eagle2.topology(8, 2, 2)
    with pytest.raises(MethodError, match="iid"):
        eagle2.topology(draw=base.IID)
