"""decoding/vocab.py against sorts, exact sums and counted draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import vocab


def _logits(seed, shape, scale=3.0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale


@pytest.mark.parametrize("k", [1, 2, 7, 64, 1000])
def test_top_k_threshold_is_the_kth_value(k):
    logits = _logits(0, (5, 64))
    logits[0, :9] = -np.inf
    want = np.sort(logits, -1)[:, ::-1][:, min(k, 64) - 1]
    got = jax.jit(vocab.top_k_threshold)(logits, jnp.int32(k))
    np.testing.assert_array_equal(got, want)


def test_threshold_orders_every_kind_of_float():
    tiny, huge = np.float32(1e-37), np.finfo(np.float32).max
    values = np.array([-np.inf, -huge, -1.0, -tiny, -0.0, 0.0, tiny, 1.0, huge])
    got = [float(vocab.top_k_threshold(jnp.float32(values), k)) for k in range(1, 10)]
    assert got == np.float32(values)[::-1].tolist()
    image = np.asarray(vocab._image(jnp.float32(values)))
    assert image[4] == image[5] and (np.diff(image.astype(np.int64)) >= 0).all()


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_threshold_against_a_sort(p):
    logits = _logits(1, (20, 97), 2.0)
    bar = np.asarray(jax.jit(vocab.top_p_threshold)(logits, jnp.float32(p)))
    mass = np.exp(np.float64(logits))
    mass /= mass.sum(-1, keepdims=True)
    for row, m, t in zip(logits, mass, bar):
        inside, strictly = m[row >= t].sum(), m[row > t].sum()
        assert inside >= p - 1e-6 and strictly < p + 1e-6
        assert t in row


def test_top_p_check_catches_a_threshold_one_step_off():
    logits = _logits(1, (97,), 2.0)
    bar = float(vocab.top_p_threshold(logits, 0.9))
    mass = np.asarray(vocab.softmax(logits), np.float64)
    lower = logits[logits < bar].max()  # one token too many
    assert mass[logits > lower].sum() >= 0.9
    upper = logits[logits > bar].min()  # one too few
    assert mass[logits >= upper].sum() < 0.9


def test_thresholds_keep_ties_and_everything():
    tied = jnp.array([1.0, 2.0, 2.0, 0.0, 2.0])
    assert vocab.top_k_threshold(tied, 1) == 2.0
    assert vocab.top_p_threshold(tied, 0.1) == 2.0
    assert vocab.top_p_threshold(tied, 1.0) == -jnp.inf
    # A total that rounding leaves short of the mass asked for keeps everything.
    assert vocab.mass_threshold(tied, jnp.full(5, 0.1), 0.9) == -jnp.inf
    assert vocab.mass_threshold(tied, jnp.full(5, 0.2), 0.0) == 2.0


def test_no_sort_over_the_vocabulary():
    text = jax.jit(vocab.top_p_threshold).lower(jnp.zeros(64), 0.9).as_text()
    assert "sort" not in text
    assert "sort" in jax.jit(jnp.sort).lower(jnp.zeros(64)).as_text()


def test_reductions():
    logits = jnp.array([[0.0, 1.0, -jnp.inf, 1.0]])
    assert (
        vocab.argmax(logits).tolist() == [1] and vocab.argmax(logits).dtype == "int32"
    )
    z = 1 + 2 * np.e
    np.testing.assert_allclose(vocab.logsumexp(logits), [np.log(z)], rtol=1e-6)
    got = vocab.log_softmax(logits)[0]
    np.testing.assert_allclose(got[:2], [-np.log(z), 1 - np.log(z)], rtol=1e-6)
    assert got[2] == -jnp.inf
    one = vocab.token_logprob(logits, jnp.array([3]))
    np.testing.assert_allclose(one, [1 - np.log(z)], rtol=1e-6)
    np.testing.assert_allclose(
        vocab.entropy(jnp.array([0.0, 0.0, -jnp.inf, 0.0])), np.log(3), rtol=1e-6
    )
    values, tokens = vocab.top_k(logits, 2)
    assert values.tolist() == [[1.0, 1.0]] and tokens.tolist() == [[1, 3]]


def test_keep_never_empties_a_row():
    logits = jnp.array([[1.0, -jnp.inf], [1.0, 2.0]])
    mask = jnp.array([[False, True], [False, True]])
    want = [[1.0, -np.inf], [-np.inf, 2.0]]
    np.testing.assert_array_equal(vocab.keep(logits, mask), want)


def _chi_square(draws, p):
    counts = np.bincount(draws, minlength=len(p))
    assert counts[p == 0].sum() == 0
    live = p > 0
    expected = p[live] * len(draws)
    return ((counts[live] - expected) ** 2 / expected).sum()


# Upper 1e-4 quantile of chi-square with 4 degrees of freedom.
LIMIT = 23.51


def test_sample_has_the_law_of_softmax():
    # Law: softmax of five live tokens; n = 40,000; seed 0.
    logits = jnp.array([0.3, -1.0, -jnp.inf, 2.0, 0.0, 1.0])
    draws = jax.vmap(lambda key: vocab.sample(key, logits))(
        jax.random.split(jax.random.key(0), 40_000)
    )
    p = np.asarray(vocab.softmax(logits), np.float64)
    assert _chi_square(np.asarray(draws), p) < LIMIT
    tilted = np.where(p > 0, p + np.array([0.02, 0, 0, -0.02, 0, 0]), 0)
    assert _chi_square(np.asarray(draws), tilted) > LIMIT  # the planted fault


def test_gumbel_argmax_is_a_function_of_the_noise():
    logits, key = _logits(3, (4, 50)), jax.random.key(7)
    noise = vocab.gumbel(key, (4, 50))
    assert np.isfinite(noise).all()
    np.testing.assert_array_equal(
        vocab.sample(key, logits), vocab.gumbel_argmax(logits, noise)
    )


def test_residual_by_hand():
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.4, 0.1, 0.3])
    got = np.exp(vocab.residual(jnp.log(jnp.float32(p)), jnp.log(jnp.float32(q))))
    np.testing.assert_allclose(got, [0.75, 0.0, 0.25, 0.0], atol=1e-6)


def test_residual_completes_rejection():
    # q's accepted mass and the residual of the rejected one make up p exactly.
    p_logits, q_logits = _logits(4, (6, 33)), _logits(5, (6, 33))
    p, q = vocab.softmax(p_logits), vocab.softmax(q_logits)
    accepted = jnp.minimum(p, q)
    rest = 1 - accepted.sum(-1, keepdims=True)
    made = accepted + rest * jnp.exp(vocab.residual(p_logits, q_logits))
    np.testing.assert_allclose(made, p, atol=1e-6)
    swapped = accepted + rest * jnp.exp(vocab.residual(q_logits, p_logits))
    assert np.abs(swapped - p).max() > 1e-2  # the planted fault


def test_empty_residual_is_p():
    logits = _logits(6, (3, 20))
    got = vocab.residual(logits, logits + 5.0 * 0)
    np.testing.assert_allclose(got, vocab.log_softmax(logits), rtol=1e-5, atol=1e-5)
    assert not np.isnan(got).any()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100])
def test_packed_sets(size):
    rng = np.random.default_rng(size)
    tokens = rng.integers(0, size, 6)
    bits = vocab.token_set(jnp.asarray(tokens), jnp.arange(6) < 4, size)
    want = np.isin(np.arange(size), tokens[:4])
    np.testing.assert_array_equal(vocab.members(bits, size), want)
    bits = vocab.insert(bits, jnp.int32(size - 1))
    want[size - 1] = True
    np.testing.assert_array_equal(vocab.members(bits, size), want)
    # An id past the vocabulary (an auxiliary token) changes nothing.
    bits = vocab.insert(bits, jnp.int32(size + 64))
    np.testing.assert_array_equal(vocab.members(bits, size), want)


def test_gather_is_at_for_many():
    values = _logits(7, (3, 20))
    tokens = jnp.array([[0, 19, 5], [5, 5, 1], [2, 0, 7]])
    for i in range(3):
        one = vocab.at(values, tokens[:, i])
        np.testing.assert_array_equal(vocab.gather(values, tokens)[:, i], one)


def top_k_differences(logits: np.ndarray, k: int) -> int:
    """Rows whose best k are not those of a stable sort."""
    order = np.argsort(-logits, -1, kind="stable")[..., :k]
    found = jax.jit(lambda x: vocab.top_k(x, k))  # traced anew, for the planted fault
    values, tokens = found(jnp.asarray(logits))
    agree = np.take_along_axis(logits, order, -1) == np.asarray(values)
    return int((~((order == np.asarray(tokens)) & agree).all(-1)).sum())


def tied(size: int) -> np.ndarray:
    """float32[3, 5, size] of few values, some of them -inf, so that ties abound."""
    rng = np.random.default_rng(size)
    found = rng.integers(0, 9, (3, 5, size)).astype(np.float32)
    return np.where(rng.random(found.shape) < 0.2, -np.inf, found)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("size", [5, 1024, 1025, 3000])
def test_top_k_is_a_stable_sort(size, platform, monkeypatch):
    monkeypatch.setattr(vocab.block_traffic, "platform", lambda: platform)
    for k in (1, 3, 5):
        assert top_k_differences(tied(size), k) == 0
        smooth = np.random.default_rng(k).normal(size=(4, size)).astype(np.float32)
        assert top_k_differences(smooth, k) == 0
    barren = np.full((2, size), -np.inf, np.float32)
    assert top_k_differences(barren, 3) == 0


def test_top_k_check_catches_groups_out_of_order(monkeypatch):
    """Planted: groups in the order of their maxima; the later of two equals wins."""
    logits = np.zeros((1, 3000), np.float32)
    logits[0, [200, 210, 10]] = 9, 5, 5
    assert top_k_differences(logits, 2) == 0
    monkeypatch.setattr(vocab.jnp, "sort", lambda x, axis: x)
    assert top_k_differences(logits, 2) == 1
