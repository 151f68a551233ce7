"""The loop of real-valued tokens: its law, its counts, its noise.

Models are linear: x_t ~ N(a x_{t-1} + b, s^2), and with a trajectory the mean has a
term c n of its noise. n = 8,192 rows of 6 tokens, one seed; p > 10^-3 (Bonferroni over
the positions), planted faults below 10^-6.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding import noise
from decoding.real_valued import loop
from decoding.verifiers import continuous
from models.errors import MethodError
from models.real_valued.gaussian_series import Config, Gaussian, Model

ROWS, NEW, PROMPT = 8192, 6, 2
EXACT = continuous.real_verifier()


def linear(a: float, b: float, s: float, c: float = 0.0, steps: int = 2) -> Model:
    """A model without params, window 2; `c` is the share of the trajectory's noise."""

    def law(params, window, path):
        mean = a * window[..., -1, :] + b + c * path[..., 0, :]
        return Gaussian(mean, jnp.full_like(mean, s))

    return Model(Config(2, 1, steps=steps), lambda key: {}, law, law)


TARGET, DRAFT = linear(0.8, 0.3, 0.5, 0.7), linear(0.6, 0.0, 0.7, 0.6)
TOTAL = float(np.hypot(0.5, 0.7))  # of the target, trajectory and last step
PARAMS: dict = {"target": {}, "draft": {}}


@functools.cache
def decoded(verifier=EXACT, length=3, aligned=True, rows=ROWS, seed=0, draft=DRAFT):
    which = jnp.arange(rows, dtype=jnp.int32)
    keys = noise.request_keys(seed, which, jnp.zeros_like(which))
    prompts = jnp.ones((rows, PROMPT, 1))
    out = loop.decode(
        TARGET, draft, verifier, PARAMS, prompts, keys, NEW, length, aligned
    )
    return jax.tree.map(np.asarray, out)


def fit(tokens: np.ndarray) -> float:
    """Bonferroni's p of all positions and of products of neighbours."""
    text = tokens[:, : PROMPT + NEW, 0]
    z = (text[:, 1:] - 0.8 * text[:, :-1] - 0.3)[:, PROMPT - 1 :] / TOTAL
    values = [stats.kstest(x, "norm").pvalue for x in z.T]
    score = (z[:, 1:] * z[:, :-1]).sum() / np.sqrt(z[:, 1:].size)
    values.append(2 * stats.norm.sf(abs(score)))
    return min(1.0, min(values) * len(values))


@pytest.mark.parametrize(("length", "aligned"), [(0, True), (3, True), (3, False)])
def test_law(length, aligned):
    out = decoded(length=length, aligned=aligned)
    assert fit(out.tokens) > 1e-3
    if length == 0:  # plain decoding: a token a call, nothing tested
        assert (out.calls == NEW).all() and not out.tested.any()


def shares_all_noise(verifier):
    """The target's token behind a rejected draft has that draft's own noise."""

    def verify(key, drafts, q, p):
        verdict = verifier.verify(key, drafts, q, p)
        at = jnp.minimum(verdict.count, len(drafts) - 1)
        fresh = (drafts[at] - q.mean[at]) / q.deviation[at]
        again = p.mean[at] + p.deviation[at] * fresh
        rejected = verdict.count < len(drafts)
        return verdict.replace(token=jnp.where(rejected, again, verdict.token))

    return verifier._replace(verify=verify)


def test_fault_last_noise_is_shared():
    """Planted: noise that is not drawn afresh behind a rejection."""
    assert fit(decoded(shares_all_noise(EXACT)).tokens) < 1e-6


def test_lossy_forms_have_another_law():
    """The released rule accepts nearly all; planted: its law passed as the target's."""
    released = continuous.real_verifier(42.0, "variance")
    out = decoded(released)
    assert fit(out.tokens) < 1e-6
    assert out.accepted.sum() / out.tested.sum() > 0.95


def test_alignment_raises_acceptance():
    """And both are 1 - TV; without alignment of laws that lie apart by their noise."""
    share = lambda out: out.accepted.sum() / out.tested.sum()
    near, far = share(decoded()), share(decoded(aligned=False))
    assert near > far + 0.1


def test_a_perfect_draft_is_accepted():
    """Planted: without the shared trajectory it is not."""
    out = decoded(draft=TARGET, rows=64)
    assert (out.calls == 2).all() and (out.accepted == 6).all()
    assert (out.tested == 6).all() and not out.tries.any()
    apart = decoded(draft=TARGET, rows=64, aligned=False)
    assert apart.accepted.sum() < apart.tested.sum()


def test_counts_and_rows():
    """Tokens are drafts and one a call; a row alone is the row in a batch."""
    out, alone = decoded(rows=64), decoded(rows=1)
    assert (out.length - PROMPT == out.accepted + out.calls).all()
    assert (out.length >= PROMPT + NEW).all()
    assert (out.tested - out.accepted <= out.calls).all()
    assert (out.tries >= out.tested - out.accepted).all()
    size = PROMPT + NEW
    np.testing.assert_allclose(out.tokens[0, :size], alone.tokens[0, :size], rtol=1e-5)
    other = decoded(rows=1, seed=1)  # planted: another seed
    assert not np.allclose(other.tokens[0, :size], alone.tokens[0, :size])


def test_what_cannot_run_is_refused():
    keys = noise.request_keys(0, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    some = (EXACT, PARAMS)
    run = lambda draft, size, new, length: loop.decode(
        TARGET, draft, *some, jnp.ones((1, size, 1)), keys, new, length
    )
    with pytest.raises(MethodError, match="windows of 2"):
        run(DRAFT, 1, 4, 2)
    with pytest.raises(MethodError, match="step by step"):
        run(linear(0.5, 0.0, 1.0, steps=3), 2, 4, 2)
    for new, length in ((0, 2), (4, -1)):
        with pytest.raises(MethodError, match="use at least"):
            run(DRAFT, 2, new, length)
