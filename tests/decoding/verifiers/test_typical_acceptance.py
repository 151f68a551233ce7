"""Typical acceptance: its threshold by hand, and which path it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base
from decoding.conformance import laws
from decoding.verifiers import typical_acceptance
from models.errors import MethodError
from tests import oracles

SURE = [0.91, 0.05, 0.03, 0.01]  # H = 0.386: delta exp(-H) = 0.204, epsilon decides
FLAT = [0.4, 0.2, 0.2, 0.2]  # H = 1.332: delta exp(-H) = 0.0792 decides


def verify(tokens, parents, laws, kind=None, **thresholds):
    verifier = typical_acceptance.verifier(**thresholds)
    size = len(parents)
    nodes = base.TokenTree(
        jnp.asarray(tokens, jnp.int32),
        jnp.asarray(parents, jnp.int32),
        jnp.full((size,), base.CANDIDATE) if kind is None else jnp.asarray(kind),
        depth=3,
    )
    target = base.Target(jnp.log(jnp.asarray(laws)), {}, lambda depth: None)
    state = verifier.init({})
    verdict = verifier.verify(jax.random.key(0), state, nodes, target)
    count = int(verdict.count)
    assert (np.asarray(verdict.path)[count:] == 0).all()
    return verdict.path[:count].tolist(), int(verdict.token)


def test_threshold_by_hand():
    """One draft: 0.05 is too little for a sure target; 0.2 will do for a flat one."""
    assert verify([0, 1], [-1, 0], [SURE, SURE]) == ([], 0)
    assert verify([0, 0], [-1, 0], [SURE, SURE]) == ([1], 0)
    assert verify([0, 1], [-1, 0], [FLAT, SURE]) == ([1], 0)
    unlikely = [0.4, 0.4, 0.125, 0.075]  # H = 1.186: min(0.09, 0.0916) = 0.09
    assert verify([0, 3], [-1, 0], [unlikely, SURE]) == ([], 0)
    assert verify([0, 2], [-1, 0], [unlikely, SURE]) == ([1], 0)
    even = [0.0792 * 1.1, 0.3, 0.3, 1 - 0.6 - 0.0792 * 1.1]  # more than 0.3 exp(-H)
    assert verify([0, 0], [-1, 0], [even, SURE], delta=0.2)[0] == [1]


def test_the_longest_path_and_of_equals_the_likelier():
    """Children 1, 2; 1 has a child 3 that is unlikely, 2 a likely child 4."""
    tree = ([0, 1, 2, 3, 0], [-1, 0, 0, 1, 2])
    assert verify(*tree, [FLAT, SURE, SURE, FLAT, FLAT]) == ([2, 4], 0)
    assert verify(*tree, [FLAT, FLAT, SURE, FLAT, FLAT]) == ([2, 4], 0)
    assert verify(*tree, [FLAT, FLAT[::-1], FLAT, FLAT, FLAT[::-1]])[0] in ([1, 3],)
    other = [0.3, 0.2, 0.3, 0.2]  # now node 2 is likelier than node 1
    assert verify(*tree, [other, FLAT, FLAT, FLAT, FLAT])[0] == [2, 4]


def test_a_gap_ends_a_path():
    """The grandchild is typical, its parent is not, or is padding."""
    chain = ([0, 3, 0], [-1, 0, 1])
    assert verify(*chain, [SURE, SURE, SURE]) == ([], 0)
    pad = [base.CANDIDATE, base.PAD, base.CANDIDATE]
    assert verify([0, 0, 0], [-1, 0, 1], [SURE] * 3, kind=pad) == ([], 0)
    assert verify([0, 0, 0], [-1, 0, 1], [SURE] * 3) == ([1, 2], 0)


def test_it_is_lossy():
    """The text's law is not p, which the card says; the law tests would find it out."""
    n = 20_000
    tokens, _ = oracles.simulate(typical_acceptance.verifier(), base.IID, 1, n)
    assert typical_acceptance.CARD.guarantee == base.LOSSY
    assert laws.chi_square(tokens, oracles.P) < 1e-6
    # A draft x is kept if p(x) > 0.0958 (tokens 0, 1, 2), else token 0 comes instead.
    expected = np.array([oracles.Q[0] + oracles.Q[3], oracles.Q[1], oracles.Q[2], 0])
    assert laws.chi_square(tokens, expected) > 1e-4


def test_fault_thresholds_swapped():
    """Planted, as in the official helpers' signatures: epsilon and delta swapped."""
    sound = verify([0, 2], [-1, 0], [FLAT, SURE])
    swapped = verify([0, 1], [-1, 0], [SURE, SURE], epsilon=0.3, delta=0.05)
    assert sound == ([1], 0) and swapped == ([1], 0)
    assert verify([0, 1], [-1, 0], [SURE, SURE]) == ([], 0)


def test_bad_arguments():
    with pytest.raises(MethodError, match="epsilon=2"):
        typical_acceptance.verifier(epsilon=2.0)
