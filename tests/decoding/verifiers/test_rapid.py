"""RAPID's leaning target against the closed form of its law, which is not p."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, base, tree
from decoding.conformance import kit, laws
from decoding.verifiers import rapid, rejection
from models.errors import MethodError
from tests import oracles

# n = 10^5, seed 0; level 10^-4 a test, the planted faults are rejected at 10^-6.
N = 100_000


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def by_hand(eta: float, alpha: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """The first token's law, and p'."""
    p, q = np.asarray(oracles.P), np.asarray(oracles.Q)
    lean = softmax(np.log(p) - eta * (q >= alpha * q.max()) * (p - q))
    kept = np.minimum(q, lean)
    left = np.maximum(0, np.maximum(p - q, p - lean))
    return kept + (1 - kept.sum()) * left / left.sum(), lean


def simulate(eta: float, alpha: float = 0.1):
    sound = rapid.verifier(eta, alpha)
    state = sound.init({})

    def verify(key, _, nodes, target):
        return sound.verify(key, state, nodes, target)

    return oracles.simulate(sound._replace(verify=verify), base.IID, 1, N)


@pytest.mark.parametrize("eta", [0.0, 5.0])
def test_the_law_is_the_closed_form(eta):
    tokens, ranks = simulate(eta)
    law, lean = by_hand(eta)
    assert laws.chi_square(tokens, law) > 1e-4
    assert oracles.within(ranks.sum(), N, np.minimum(oracles.Q, lean).sum())


def test_eta_zero_is_exact():
    law, lean = by_hand(0.0)
    np.testing.assert_allclose(law, oracles.P, atol=1e-9)
    np.testing.assert_allclose(lean, oracles.P, atol=1e-9)


def test_worked_example():
    """eta = 5 with the golden p and q: far from p, and closer to q than p is."""
    law, lean = by_hand(5.0)
    assert 0.3 < abs(law - oracles.P).sum() / 2
    assert abs(lean - oracles.Q).sum() < abs(oracles.P - np.asarray(oracles.Q)).sum()
    logits = jnp.log(jnp.asarray(oracles.P)), jnp.log(jnp.asarray(oracles.Q))
    row = rapid.Row(jnp.float32(5), jnp.float32(0.1))
    np.testing.assert_allclose(jnp.exp(rapid.leaning(*logits, row)), lean, atol=1e-6)
    row = rapid.Row(jnp.float32(5), jnp.float32(1.0))  # the best of q alone
    found = np.asarray(jnp.exp(rapid.leaning(*logits, row)))
    np.testing.assert_allclose(found, by_hand(5.0, 1.0)[1], atol=1e-6)


def test_fault_taken_for_lossless():
    """Planted: eta = 5 held for a sampler of p, or of p'; neither is its law."""
    tokens, _ = simulate(5.0)
    law, lean = by_hand(5.0)
    assert laws.chi_square(tokens, np.asarray(oracles.P)) < 1e-6
    assert laws.chi_square(tokens, lean) < 1e-6
    assert abs(law.sum() - 1) < 1e-9


def verdicts(verifier: base.Verifier) -> np.ndarray:
    """Of 400 chains of 3 drafts with random laws: how many hold, the extra token."""

    def one(key):
        keys = jax.random.split(key, 4)
        p, q = (1.5 * jax.random.normal(k, (4, 5)) for k in keys[:2])
        drafts = jax.random.categorical(keys[2], q[:3])[None]
        laws = {"draw": base.IID, "logits": q[None]}
        nodes = tree.chain(drafts[:, 0], drafts, jnp.array([3]), **laws)
        nodes = jax.tree.map(lambda x: x[0], nodes.replace(calls=jnp.zeros(1)))
        at = base.Target(p, {}, lambda depth: p[0])
        verdict = verifier.verify(keys[3], verifier.init({}), nodes, at)
        return verdict.count, verdict.token

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 400))
    return np.stack(found)


def test_eta_zero_is_rejection_verdict_by_verdict():
    """The coins are the same, and so is every verdict; eta = 2 (planted) is another."""
    exact = verdicts(rejection.verifier())
    np.testing.assert_array_equal(verdicts(rapid.verifier(eta=0.0)), exact)
    assert set(exact[0].tolist()) == {0, 1, 2, 3}
    assert (verdicts(rapid.verifier(eta=2.0)) != exact).any()


def test_what_a_composition_promises():
    case = kit.cases()["rapid-chain"]

    def promised(eta: float, temperature: float = 0.8) -> str:
        spec = kit.Spec("verifiers/rapid", eta=eta)
        method = Method(case.drafter, spec, case.topology)
        return kit.Run(method, temperature).parts.guarantee

    assert promised(10.0) == promised(10.0, 0.0) == base.LOSSY
    assert promised(0.0) == base.LAW
    assert promised(0.0, 0.0) == base.ARGMAX  # the greedy verifier's


def test_bad_arguments():
    with pytest.raises(MethodError, match="eta=-1"):
        rapid.verifier(eta=-1.0)
    with pytest.raises(MethodError, match="alpha=2"):
        rapid.verifier(alpha=2.0)
