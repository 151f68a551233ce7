"""decoding/vocab.py against sorts, exact sums and counted draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import vocab
from tests import default_compiler


def _logits(seed, shape, scale=3.0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * scale


@pytest.mark.parametrize("k", [1, 2, 7, 64, 1000])
def test_top_k_mask_is_the_k_best(k):
    logits = _logits(0, (5, 64))
    logits[0, :9] = -np.inf
    bar = np.sort(logits, -1)[:, ::-1][:, min(k, 64) - 1]
    got = jax.jit(vocab.top_k_mask)(logits, jnp.int32(k))
    np.testing.assert_array_equal(got, logits >= bar[:, None])


def test_masks_order_every_kind_of_float():
    tiny, huge = np.float32(1e-37), np.finfo(np.float32).max
    values = np.array([-np.inf, -huge, -1.0, -tiny, -0.0, 0.0, tiny, 1.0, huge])
    sizes = [int(vocab.top_k_mask(jnp.float32(values), k).sum()) for k in range(1, 10)]
    assert sizes == [1, 2, 3, 5, 5, 6, 7, 8, 9]  # zeros are equal
    image = np.asarray(vocab._image(jnp.float32(values)))
    assert image[4] == image[5] and (np.diff(image.astype(np.int64)) >= 0).all()


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_top_p_mask_against_a_sort(p):
    logits = _logits(1, (20, 97), 2.0)
    masks = np.asarray(jax.jit(vocab.top_p_mask)(logits, jnp.float32(p)))
    mass = np.exp(np.float64(logits))
    mass /= mass.sum(-1, keepdims=True)
    for row, m, kept in zip(logits, mass, masks):
        least = row[kept].min()
        assert (kept == (row >= least)).all()
        assert m[kept].sum() >= p - 1e-6 and m[row > least].sum() < p + 1e-6


def test_fault_a_mask_one_token_off():
    logits = _logits(1, (97,), 2.0)
    kept = np.asarray(vocab.top_p_mask(logits, 0.9))
    mass = np.asarray(vocab.softmax(logits), np.float64)
    lower = logits[~kept].max()  # one token too many
    assert mass[logits > lower].sum() >= 0.9
    upper = np.sort(logits[kept])[1]  # one too few
    assert mass[logits >= upper].sum() < 0.9


def test_masks_keep_ties_and_everything():
    tied = jnp.array([1.0, 2.0, 2.0, 0.0, 2.0])
    best = [False, True, True, False, True]
    assert vocab.top_k_mask(tied, 1).tolist() == best
    assert vocab.top_p_mask(tied, 0.1).tolist() == best
    assert vocab.top_p_mask(tied, 1.0).all()
    # A total that rounding leaves short of the mass asked for keeps everything.
    assert vocab.mass_mask(tied, jnp.full(5, 0.1), 0.9).all()
    assert vocab.mass_mask(tied, jnp.full(5, 0.2), 0.0).tolist() == best
    assert vocab.near_best_mask(tied, lambda top: top).tolist() == best
    near = vocab.near_best_mask(tied, lambda top: top - 1)
    assert near.tolist() == [True, True, True, False, True]


def test_no_sort_over_the_vocabulary():
    text = jax.jit(vocab.top_p_mask).lower(jnp.zeros(64), 0.9).as_text()
    assert "sort" not in text
    assert "sort" in jax.jit(jnp.sort).lower(jnp.zeros(64)).as_text()


def rounded_twice(find, rows: int = 256) -> tuple[np.ndarray, np.ndarray]:
    """`find` of [rows, 2, 2, 4] whose producer XLA on CPU may round in two ways.

    `raw * c + noise` is one fused multiply-add or two operations; the reader of a few
    of the results pulls it into its own kernel. Returns what `find` gave of the first
    siblings, and their values float64[rows, 2, 4].
    """
    raw, noise = _logits(8, (rows, 2, 1, 4)), _logits(9, (rows, 2, 2, 4))
    found = jax.jit(lambda raw, noise: find(raw / 0.9 + noise)[:, :, 0])(raw, noise)
    return np.asarray(found), (np.float64(raw) / 0.9 + noise)[:, :, 0]


def shortfalls(argmax) -> int:
    """Rows of which `argmax` gives a token that is not the best."""
    tokens, values = rounded_twice(argmax)
    found = np.take_along_axis(values, tokens[..., None], -1)[..., 0]
    return int((found < values.max(-1) - 1e-5).sum())


def two_kernels(logits):
    """An arg-max that compares `logits` with a maximum found in another kernel."""
    size = logits.shape[-1]
    best = logits == logits.max(-1)[..., None]
    index = jnp.where(best, jnp.arange(size, dtype=jnp.int32), size)
    return jnp.minimum(index.min(-1), size - 1)


def misses(mask) -> int:
    """Rows of which `mask` does not hold the best token and it alone."""
    masks, values = rounded_twice(mask)
    return int((masks != (values == values.max(-1, keepdims=True))).any(-1).sum())


def faults_of_rounding() -> dict[str, int]:
    """Rows that an arg-max or a mask gets wrong, with two that are planted."""
    return {
        "argmax": shortfalls(vocab.argmax),
        "top_k": misses(lambda x: vocab.top_k_mask(x, 1)),
        "top_p": misses(lambda x: vocab.top_p_mask(x, 1e-6)),
        "near_best": misses(lambda x: vocab.near_best_mask(x, lambda best: best)),
        "argmax in two kernels": shortfalls(two_kernels),
        "mask in two kernels": misses(lambda x: x >= x.max(-1, keepdims=True)),
    }


def test_the_best_token_is_found_however_its_value_is_rounded():
    """Planted: the maximum and the comparison with it in kernels of their own."""
    rows = default_compiler.result("tests.decoding.test_vocab", "faults_of_rounding")
    planted = [rows.pop(f"{name} in two kernels") for name in ("argmax", "mask")]
    assert set(rows.values()) == {0} and min(planted) > 10


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_argmax_of_ties_and_of_nothing(platform, monkeypatch):
    monkeypatch.setattr(vocab.block_traffic, "platform", lambda: platform)
    rows = [[0.0, 2.0, 2.0], [-np.inf] * 3, [-np.inf, -np.inf, 1.0], [np.nan] * 3]
    for kind in (jnp.float32, jnp.bfloat16):
        found = vocab.argmax(jnp.array(rows, kind))
        assert found.dtype == jnp.int32 and found[:3].tolist() == [1, 0, 2]
        assert 0 <= found[3] < 3


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


def test_fault_groups_out_of_order(monkeypatch):
    """Planted: groups in the order of their maxima; the later of two equals wins."""
    logits = np.zeros((1, 3000), np.float32)
    logits[0, [200, 210, 10]] = 9, 5, 5
    assert top_k_differences(logits, 2) == 0
    monkeypatch.setattr(vocab.jnp, "sort", lambda x, axis: x)
    assert top_k_differences(logits, 2) == 1
