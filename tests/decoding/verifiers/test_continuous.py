"""Continuous speculative decoding: its law, its acceptance, its lossy forms.

The law is tested with n = 32,768 rows of two drafts in R^2 (decoding/conformance/
real_verifiers.py: Kolmogorov and Smirnov's test and moments), seed 0: p > 10^-4 with
Bonferroni's factor. The planted faults must fall below 10^-6.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoding
from decoding import Method, Spec, base
from decoding.conformance import faults, kit, real_verifiers
from decoding.verifiers import continuous
from models.errors import MethodError
from models.real_valued.gaussian_series import Gaussian


def laws(*pairs) -> Gaussian:
    """Laws in R^1 of (mean, deviation)."""
    mean, deviation = jnp.asarray(pairs, jnp.float32).T
    return Gaussian(mean[:, None], deviation[:, None])


def one_draft(verifier, q, p, n=1 << 14, seed=0):
    """The first token of n rows with a draft each, and their verdicts."""

    @jax.jit
    @jax.vmap
    def run(key):
        drafting, coins = jax.random.split(key)
        draft = q.mean + q.deviation * jax.random.normal(drafting, q.mean.shape)
        verdict = verifier.verify(coins, draft, q, p)
        return jnp.where(verdict.count > 0, draft[0], verdict.token), verdict

    token, verdict = run(jax.random.split(jax.random.key(seed), n))
    return np.asarray(token)[:, 0], verdict


def overlap(q, p) -> float:
    """1 - TV of two laws in R^1, by quadrature."""
    x = np.linspace(-30, 30, 600_001)
    rows = [
        stats.norm.pdf(x, float(law.mean[0, 0]), float(law.deviation[0, 0]))
        for law in (q, p)
    ]
    return float(np.minimum(*rows).sum() * (x[1] - x[0]))


def test_ratio_by_hand():
    """At x = 1: N(1; 0, 1) and N(1; 2, 0.5); then T = 2, then without normalisers."""
    p, q = laws((0.0, 1.0)), laws((2.0, 0.5))
    ratio = lambda *rest: float(continuous.log_ratio(jnp.ones((1, 1)), p, q, *rest)[0])
    assert ratio(1.0, True) == pytest.approx(-0.5 + 2.0 - np.log(2))
    assert ratio(2.0, True) == pytest.approx((-0.5 + 2.0) / 4 - np.log(2))
    assert ratio(1.0, False) == pytest.approx(1.5)


def test_exact_law():
    verifier = continuous.real_verifier()
    assert verifier.guarantee == base.LAW
    real_verifiers.keeps_the_law(Spec("verifiers/continuous"))
    assert real_verifiers.fit(verifier) > real_verifiers.LEVEL


def shares_the_last_noise(part):
    """The residual's token has the rejected draft's own noise, under the target."""

    def verify(key, drafts, q, p):
        verdict = part.verify(key, drafts, q, p)
        at = jnp.minimum(verdict.count, len(drafts) - 1)
        noise = (drafts[at] - q.mean[at]) / q.deviation[at]
        again = p.mean[at] + p.deviation[at] * noise
        rejected = verdict.count < len(drafts)
        return verdict.replace(token=jnp.where(rejected, again, verdict.token))

    return part._replace(verify=verify)


def coins_of_the_draft(part):
    """One coin for all drafts of a round."""

    def verify(key, drafts, q, p):
        first = jax.tree.map(lambda x: x[: len(drafts)], p)
        ratio = continuous.log_ratio(drafts, first, q, 1.0, True)
        coin = jnp.log(jax.random.uniform(jax.random.fold_in(key, 0)))
        verdict = part.verify(key, drafts, q, p)
        count = jnp.cumprod(coin < ratio).sum().astype(jnp.int32)
        return verdict.replace(count=count)

    return part._replace(verify=verify)


@pytest.mark.parametrize(
    "fault",
    [faults.draws_from_the_target, shares_the_last_noise, coins_of_the_draft],
)
def test_fault_bends_the_law(fault):
    """Planted: a token of p in place of the residual, shared noise, one coin."""
    assert real_verifiers.fit(fault(continuous.real_verifier())) < 1e-6


@pytest.mark.parametrize(
    "arguments",
    [{"temperature": 42.0}, {"temperature": 42.0, "deviation": "variance"}],
)
def test_lossy_forms_are_called_lossy_and_are(arguments):
    """Planted: the law test would catch them if they were declared LAW."""
    verifier = Spec("verifiers/continuous", **arguments).build({})
    assert verifier.guarantee == base.LOSSY
    assert real_verifiers.fit(verifier) < 1e-6


@pytest.mark.parametrize("p", [(0.8, 0.6), (0.1, 1.1), (3.0, 1.0)])
def test_acceptance_and_tries_have_closed_forms(p):
    """1 - TV drafts, 1 / TV proposals a rejection; n = 16,384, 4.5 standard errors."""
    q, target = laws((0.0, 1.0)), laws(p, (0.0, 1.0))
    first = laws(p)
    token, verdict = one_draft(continuous.real_verifier(), q, target)
    share, due = np.asarray(verdict.count).mean(), overlap(q, first)
    error = np.sqrt(due * (1 - due) / len(token))
    assert abs(share - due) < 4.5 * error + 1e-5
    other = overlap(q, laws((p[0] + 1, p[1])))  # planted: another target's
    assert abs(share - other) > 4.5 * error
    tries = np.asarray(verdict.tries)[np.asarray(verdict.count) == 0]
    mean = 1 / (1 - due)
    error = np.sqrt(due) * mean / np.sqrt(len(tries))  # geometric
    assert abs(tries.mean() - mean) < 4.5 * error + 1e-4
    assert stats.kstest((token - p[0]) / p[1], "norm").pvalue > 1e-3


def test_equal_laws_accept_everything():
    """And behind all drafts the one proposal of p is the token."""
    q = laws((0.3, 0.7), (1.0, 2.0))
    p = laws((0.3, 0.7), (1.0, 2.0), (5.0, 0.1))
    _, verdict = one_draft(continuous.real_verifier(), q, p, n=4096)
    assert (np.asarray(verdict.count) == 2).all()
    assert (np.asarray(verdict.tries) == 1).all()
    last = (np.asarray(verdict.token)[:, 0] - 5.0) / 0.1
    assert stats.kstest(last, "norm").pvalue > 1e-3


def test_far_laws_end():
    """No overlap: every draft is rejected, the first proposal is taken; no NaN."""
    q, p = laws((0.0, 1e-3)), laws((1e3, 1e-3), (0.0, 1.0))
    token, verdict = one_draft(continuous.real_verifier(), q, p, n=1024)
    assert (np.asarray(verdict.count) == 0).all()
    assert (np.asarray(verdict.tries) == 1).all() and np.isfinite(token).all()


def test_the_limit_holds():
    """The residual of equal laws is empty: whole blocks are tried, up to the limit."""
    law = laws((0.0, 1.0))
    row = jax.tree.map(lambda x: x[0], law)
    ratio = lambda y: continuous.log_ratio(y, row, row, 1.0, True)
    run = lambda limit: continuous.residual(
        jax.random.key(0), row, ratio, jnp.bool_(False), limit
    )
    assert int(run(100)[1]) == 4 * continuous.BLOCK
    token, tries = continuous.residual(
        jax.random.key(0), row, ratio, jnp.bool_(True), 100
    )
    assert int(tries) == 1 and np.isfinite(np.asarray(token)).all()


@pytest.mark.parametrize(
    "arguments", [{"temperature": 0.0}, {"deviation": "half"}, {"limit": 0}]
)
def test_wrong_arguments(arguments):
    with pytest.raises(MethodError, match=next(iter(arguments))):
        continuous.real_verifier(**arguments)


def test_token_models_refuse_it():
    method = Method(verifier=Spec("verifiers/continuous"))
    with pytest.raises(MethodError, match="real-valued tokens"):
        decoding.generate(kit.TARGET, [[1, 2]], method=method, temperature=1.0)
