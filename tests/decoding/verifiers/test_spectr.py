"""K-SEQ against its closed form, and the drafts it follows down a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.conformance import laws
from decoding.theory import optimal_transport
from decoding.verifiers import spectr
from tests import oracles

N = 100_000  # seed 0; 4 standard errors
GOLDEN = ((1.0, 0.5), (1.5844288770, 0.6584428877), (2.1000307871, 0.7100030787))


def test_closed_form_gives_the_golden_numbers():
    for k, (rho, accepted) in enumerate(GOLDEN, 1):
        found, chance, law = oracles.kseq(oracles.P, oracles.Q, k)
        assert abs(found - rho) < 1e-9 and abs(chance - accepted) < 1e-9
        np.testing.assert_allclose(law, oracles.P, atol=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_acceptance_and_law(k):
    tokens, ranks = oracles.simulate(spectr.verifier(), base.IID, k, N)
    assert oracles.within(ranks.sum(), N, GOLDEN[k - 1][1])
    assert (
        ranks.sum() / N <= optimal_transport.acceptance(oracles.P, oracles.Q, k) + 0.01
    )
    assert laws.chi_square(tokens, oracles.P) > 1e-4


SCALE = jax.jit(spectr.scale)


def test_division_factor():
    """The bisection in float32, for a traced k.

    Equal laws need no lowering; their root is a triple one, known to a tenth of a
    percent, at which all but 10^-9 is accepted.
    """
    p, q = jnp.asarray(oracles.P, jnp.float32), jnp.asarray(oracles.Q, jnp.float32)
    for k, (rho, accepted) in enumerate(GOLDEN, 1):
        found, taken = SCALE(p, q, jnp.int32(k))
        beta = np.minimum(oracles.Q, oracles.P / rho).sum()
        assert abs(found - rho) < 1e-5 and abs(taken - accepted / beta) < 1e-5
    found, taken = SCALE(p, p, jnp.int32(3))
    assert abs(found - 1) < 2e-3 and abs(taken - found) < 1e-5
    left = jnp.array([0.5, 0.5, 0.0, 0.0])
    found, taken = SCALE(left, left[::-1], jnp.int32(3))  # nothing in common
    assert 1 <= found <= 3 and taken == 3


def tree(tokens, parents, p, q):
    """★ A tree whose laws are `p` and `q` at every node."""
    size = len(parents)
    laws = jnp.broadcast_to(jnp.log(jnp.asarray(q)), (size, 4))
    nodes = base.TokenTree(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(parents, jnp.int32),
        jnp.full((size,), base.CANDIDATE),
        laws,
        draw=base.IID,
        depth=2,
    )
    return nodes, oracles.target(p, size)


def test_drafts_that_agree_go_on_together():
    """Nodes 1 and 2 both bear token 0: the drafts below both follow it.

    p puts all its mass on 0 and then on 1; node 1's child bears 2, node 2's bears 1. So
    the path ends at node 4, whose parent is node 2.
    """
    nodes, at = tree([3, 0, 0, 2, 1], [-1, 0, 0, 1, 2], [0.25] * 4, [0.25] * 4)
    sure = jnp.log(jnp.eye(4)[jnp.array([0, 1, 1, 3, 3])])
    verdict = spectr.verifier().verify(
        jax.random.key(0), base.State(), nodes, at._replace(logits=sure)
    )
    assert (verdict.path.tolist(), int(verdict.count)) == ([2, 4], 2)
    assert int(verdict.token) == 3


def test_padding_is_no_draft():
    nodes, at = tree([0, 1, 1], [-1, 0, 0], [0.25] * 4, [0.25] * 4)
    nodes = nodes.replace(kind=jnp.array([base.CANDIDATE, base.PAD, base.PAD]))
    keys = jax.random.split(jax.random.key(2), 2000)
    run = jax.vmap(lambda k: spectr.verifier().verify(k, base.State(), nodes, at))
    verdict = run(keys)
    assert (verdict.count == 0).all()
    counts = np.bincount(verdict.token, minlength=4)
    assert laws.chi_square(counts, np.full(4, 0.25)) > 1e-4


def faulty(monkeypatch, change):
    sound = spectr.scale
    monkeypatch.setattr(spectr, "scale", lambda p, q, k: change(*sound(p, q, k)))
    return oracles.simulate(spectr.verifier(), base.IID, 3, N)


def test_fault_no_lowering(monkeypatch):
    """Planted: each draft is accepted as if it were the only one (rho = 1)."""
    tokens, _ = faulty(monkeypatch, lambda rho, taken: (jnp.ones_like(rho), taken))
    assert laws.chi_square(tokens, oracles.P) < 1e-6


def test_fault_residual_of_one_draft(monkeypatch):
    """Planted: the residual takes away what one draft accepts, not what three do."""
    tokens, _ = faulty(monkeypatch, lambda rho, taken: (rho, jnp.ones_like(taken)))
    assert laws.chi_square(tokens, oracles.P) < 1e-6


def test_fault_duplicates_left_out():
    """Planted: a repeated draft is dropped, and k counts the distinct ones."""
    sound = spectr.verifier()

    def verify(key, state, nodes, target):
        same = nodes.tokens[:, None] == nodes.tokens[None]
        earlier = jnp.tril(same & (nodes.parents[None] == 0), -1).any(1)
        kind = jnp.where(earlier & (nodes.parents == 0), base.PAD, nodes.kind)
        return sound.verify(key, state, nodes.replace(kind=kind), target)

    tokens, _ = oracles.simulate(sound._replace(verify=verify), base.IID, 3, N)
    assert laws.chi_square(tokens, oracles.P) < 1e-6
