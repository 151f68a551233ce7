"""Static trees: where candidates go, for every draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.topologies import static
from decoding.tree_building import child_sampling, grow
from models.errors import MethodError
from tests.decoding.drafters import kit

CHOICES = ((0,), (1,), (0, 0), (1, 0), (1, 1))


def grown(draw: str, seed: int = 0) -> tuple[base.TokenTree, jax.Array, jax.Array]:
    """Both levels of the tree, with the laws of its three inner nodes."""
    topology = static.topology(CHOICES, draw)
    ctx = kit.context([[5], [6]])
    nodes = grow.empty(ctx, topology)
    laws = jax.random.normal(jax.random.key(seed), (2, 3, 8))
    if draw in (base.IID, base.NO_REPLACE):
        nodes = base.TokenTree(
            nodes.tokens,
            nodes.parents,
            nodes.kind,
            jnp.zeros((2, 6, 8)),
            draw=draw,
            depth=2,
        )
    noise = jax.random.gumbel(jax.random.key(9), (2, 8))
    state = topology.init(2)
    for level, of in enumerate((laws[:, :1], laws[:, 1:])):
        keys = jax.random.split(jax.random.key(level), 2)
        nodes, state = topology.expand(
            keys, state, nodes, of, lambda level: noise, level
        )
    return nodes, laws, noise


@pytest.mark.parametrize("draw", base.DRAWS)
def test_shape(draw):
    topology = static.topology(CHOICES, draw)
    assert (topology.nodes, topology.depth, topology.widths) == (6, 2, (1, 2, 3))
    nodes, laws, _ = grown(draw)
    assert nodes.parents[0].tolist() == [-1, 0, 0, 1, 2, 2]
    assert (np.asarray(nodes.kind) == base.CANDIDATE).all()
    assert nodes.tokens[:, 0].tolist() == [5, 6]
    if draw in (base.IID, base.NO_REPLACE):
        np.testing.assert_array_equal(nodes.logits[:, :3], laws)


@pytest.mark.parametrize("draw", [base.POINT, base.COUPLED])
def test_children_are_the_best_in_order(draw):
    """Node 1 has one child, the best; node 2 has two, the best and the second."""
    nodes, laws, noise = grown(draw)
    score = laws + (noise[:, None] if draw == base.COUPLED else 0)
    order = np.argsort(-np.asarray(score), -1)
    for row in range(2):
        expected = [*order[row, 0, :2], order[row, 1, 0], *order[row, 2, :2]]
        assert nodes.tokens[row, 1:].tolist() == expected


def test_siblings_without_replacement_differ():
    for seed in range(20):
        tokens = grown(base.NO_REPLACE, seed)[0].tokens
        assert (tokens[:, 1] != tokens[:, 2]).all()
        assert (tokens[:, 4] != tokens[:, 5]).all()


def test_fault_iid_siblings_may_agree():
    """Planted: draws with replacement do collide, as the test above would see."""
    pairs = [grown(base.IID, seed)[0].tokens for seed in range(20)]
    assert any((t[:, 1] == t[:, 2]).any() for t in pairs)


def test_draws_follow_the_law():
    """The first of two draws, 20,000 times, seed 0: within 4 standard errors."""
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    keys = jax.random.split(jax.random.key(0), 20_000)
    for draw in (base.IID, base.NO_REPLACE):
        one = lambda key, draw=draw: child_sampling.candidates(
            draw, key[None], logits[None, None], 2, jnp.zeros((1, 3))
        )[0, 0, 0]
        counts = np.bincount(jax.vmap(one)(keys), minlength=3) / len(keys)
        assert (abs(counts - [0.5, 0.3, 0.2]) < 4 * 0.5 / len(keys) ** 0.5).all()


def test_bad_arguments():
    with pytest.raises(MethodError, match="no parent"):
        static.topology(((0, 0),))
    with pytest.raises(MethodError, match="skips sibling rank"):
        static.topology(((1,),))
    with pytest.raises(MethodError, match="draw='lucky'"):
        static.topology(draw="lucky")
