"""The chain of SpecDec++: where it ends, what it reads, its law and its price.

The draft's state is its token, one-hot, so that a head without blocks is a table of the
acceptance of every token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.topologies import specdec_pp
from decoding.tree_building import grow
from decoding.verifiers import rejection
from models.errors import ConfigError, MethodError
from tests.decoding.topologies import kit

VERIFIER = rejection.verifier()


def head(accepted) -> dict:
    """Params whose acceptance of token y is `accepted[y]`."""
    a = jnp.asarray(accepted, jnp.float32)
    weight = jnp.log(jnp.stack([1 - a, a], 1) + 1e-30)
    block = {"weight": jnp.zeros((kit.V, kit.V)), "bias": jnp.zeros(kit.V)}
    own = {"block": block, "out": {"weight": weight, "bias": jnp.zeros(2)}}
    return {"acceptance": own}


ROWS = 2000


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _grown(length, least, free, draw, params, logits, threshold):
    """One program for all heads, laws and thresholds."""
    sound = specdec_pp.topology(
        length=length, least=least, blocks=0, free=free, draw=draw
    )

    def init(batch):
        row = sound.init(batch).row
        return base.State(row.replace(threshold=jnp.full((batch,), threshold)))

    topology = sound._replace(init=init)
    return kit.grown_from.__wrapped__(topology, ROWS, logits, 0, params)


def grown(
    params, threshold, q=kit.Q, length=6, least=1, free=True, draw=base.POINT
) -> base.TokenTree:
    """Chains of all rows; drawn ones differ."""
    return _grown(length, least, free, draw, params, kit.raw(q), threshold)


def lengths(nodes: base.TokenTree) -> list[int]:
    """Of the first rows."""
    return (np.asarray(nodes.kind)[:200].sum(1) - 1).tolist()


CYCLE = np.full((4, 4), 0.01) + 0.96 * np.roll(np.eye(4), 1, 1)  # 0 1 2 3 0 ...


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_perfect_head_stops_at_the_first_token_to_be_rejected(stop):
    """Token `stop` will be rejected: it is the last that is read, and the last draft,
    or the last but the one that its reading gave for nothing."""
    perfect = head([float(y != stop) for y in range(4)])
    for h in (0.01, 0.99):
        exact = grown(perfect, h, CYCLE, free=False)
        official = grown(perfect, h, CYCLE)
        assert set(lengths(exact)) == {stop} and set(lengths(official)) == {stop + 1}
        for nodes in (exact, official):
            assert (np.asarray(nodes.calls) == stop).all()


def test_the_ends_of_the_threshold():
    """h = 1: the greatest length; h = 0: the least, of two where one more is free."""
    unsure = head([0.9, 0.5, 0.7, 0.2])
    for h, length, fields in (
        (1.0, 6, {}),
        (0.0, 2, {}),
        (0.0, 1, {"free": False}),
        (0.0, 4, {"least": 4}),
        (0.0, 4, {"least": 4, "free": False}),
    ):
        assert set(lengths(grown(unsure, h, **fields))) == {length}


def test_it_ends_where_the_product_says():
    """Rows of a batch, drawn, against the rule by hand; planted: the least of the a_j
    in place of their product."""
    a, h = np.array([0.9, 0.8, 0.95, 0.6]), 0.45
    nodes = grown(head(a), h, draw=base.IID, free=False)
    other = 0
    for row in range(200):
        longest = kit.paths(nodes, row)[-1]
        stop = 1 - np.cumprod(a[list(longest)]) > h
        assert not stop[:-1].any() and (stop[-1] or len(longest) == 6)
        assert int(nodes.calls[row]) == min(len(longest), 5)
        least = 1 - np.minimum.accumulate(a[list(longest)]) > h
        other += not np.array_equal(least, stop)
    assert len(set(lengths(nodes))) > 3 and other > 100


def test_law():
    for free in (True, False):
        topology = specdec_pp.topology(
            length=3, least=1, threshold=0.3, blocks=0, free=free, draw=base.IID
        )
        params = head([0.9, 0.6, 0.8, 0.2])
        accepted, fit = kit.accepted_and_fit(topology, VERIFIER, params=params)
        assert fit > kit.LEVEL and accepted > 0.2


def test_fault_a_draft_judged_by_itself():
    """Planted: a draft that the head doubts is left out of the tree."""
    topology = specdec_pp.topology(
        length=2, least=1, threshold=1.0, blocks=0, draw=base.IID
    )
    sound, a = topology.expand, jnp.array([0.9, 0.1, 0.9, 0.1])

    def expand(keys, state, nodes, logits, noise, level):
        nodes, state = sound(keys, state, nodes, logits, noise, level)
        kept = (a[nodes.tokens[:, level + 1]] > 0.5) & (nodes.kind[:, level] > 0)
        kind = nodes.kind.at[:, level + 1].set(jnp.where(kept, base.CANDIDATE, 0))
        return nodes.replace(kind=kind), state

    topology = topology._replace(expand=expand)
    assert kit.accepted_and_fit(topology, VERIFIER, params=head(a))[1] < kit.FAULT


def price(nodes: base.TokenTree, a: np.ndarray, cost: float) -> float:
    """Expected tokens / (a target call + cost draft calls), over all rows."""
    there = np.asarray(nodes.kind)[:, 1:] == base.CANDIDATE
    each = np.where(there, a[np.asarray(nodes.tokens)[:, 1:]], 0.0)
    tokens = (1 + np.cumprod(each, 1).sum(1)).sum()
    rows, calls = nodes.tokens.shape[0], np.asarray(nodes.calls).sum()
    return tokens / (rows + cost * (rows + calls))


@pytest.mark.long
def test_it_beats_every_fixed_length_where_acceptance_can_be_told():
    """Token 3 is a draft's in a fifth of all places and nearly never the target's.

    Every place has the same laws, so one round stands for all. n = 2,000 chains, seed
    0. Planted: a head that knows the mean acceptance alone, which makes every chain as
    long, gains nothing on the best fixed length.
    """
    q = np.tile([0.3, 0.3, 0.2, 0.2], (4, 1))
    p = np.tile([0.37, 0.37, 0.25, 0.01], (4, 1))
    a = np.minimum(1, p[0] / q[0])
    alpha = float((q[0] * a).sum())
    draws = {"q": q, "length": 16, "draw": base.IID}
    knows = {h: grown(head(a), h, **draws) for h in (0.3, 0.97)}
    constant = head([alpha] * 4)
    blind = {h: grown(constant, h, **draws) for h in (0.3, 0.5, 0.7, 0.97)}
    for cost in (0.05, 0.1, 0.2, 0.3):
        fixed = max(
            (alpha ** np.arange(k + 1)).sum() / (1 + cost * k) for k in range(1, 17)
        )
        best = max(price(nodes, a, cost) for nodes in knows.values())
        assert best > 1.05 * fixed
        assert max(price(nodes, a, cost) for nodes in blind.values()) < 1.03 * fixed


def test_bad_arguments():
    with pytest.raises(MethodError, match="least=3, length=2"):
        specdec_pp.topology(length=2, least=3)
    with pytest.raises(MethodError, match=r"threshold=1\.5"):
        specdec_pp.topology(threshold=1.5)
    with pytest.raises(MethodError, match="blocks=-1"):
        specdec_pp.topology(blocks=-1)
    with pytest.raises(ConfigError, match="has the params"):
        specdec_pp.topology({"fuse": 1})
    with pytest.raises(MethodError, match="acceptance"):
        grown({}, 0.5)
    wide = head([0.5] * 4)["acceptance"]
    wide["out"]["weight"] = jnp.zeros((5, 2))
    with pytest.raises(ConfigError, match="states of width 5"):
        grown({"acceptance": wide}, 0.5)
    topology = specdec_pp.topology(length=2)
    with pytest.raises(MethodError, match="has none"):
        grow._check(())
    assert topology.linear and topology.nodes == 3
