"""Codes of few bits, their rest and outliers, against NumPy and in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.cache_layouts import residual_codes
from models.cache_layouts.residual_codes import KEYS, VALUES, Rule

N, D, GROUP = 64, 32, 16
PLAIN = Rule(2, GROUP, 0, 0.0)


def blocks(seed=0):
    """Blocks [3, 64, 32] of channels of unequal size, with a few large elements."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, N, D)) * np.exp(rng.normal(size=D))
    return np.where(rng.random(x.shape) < 0.01, 8 * x, x).astype(np.float32)


def back(x, rule, axis):
    both = jax.jit(
        lambda x: residual_codes.expand(
            residual_codes.compress(x, rule, axis), rule, axis
        )
    )
    return np.asarray(both(jnp.asarray(x)))


def error(x, rule, axis=KEYS):
    return np.linalg.norm(x - back(x, rule, axis)) / np.linalg.norm(x)


def by_hand(x, levels, axis):
    """Round to `levels` steps between the ends of each group, in float64."""
    x = np.asarray(x, np.float64)
    y = x.swapaxes(1, 2) if axis == KEYS else x
    grouped = y.reshape(*y.shape[:2], -1, N if axis == KEYS else GROUP)
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    step = (high - low) / levels
    found = (np.round((grouped - low) / step) * step + low).reshape(y.shape)
    return found.swapaxes(1, 2) if axis == KEYS else found


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing_is_exact(bits):
    """Planted: the parts of a byte in the other order."""
    rng = np.random.default_rng(bits)
    x = rng.integers(0, 2**bits, (5, 3, 64)).astype(np.uint8)
    packed = residual_codes.pack(jnp.asarray(x), bits)
    assert packed.dtype == jnp.uint8 and packed.shape == (5, 3, 8 * bits)
    found = np.asarray(residual_codes.unpack(packed, bits))
    np.testing.assert_array_equal(found, x)
    turned = found.reshape(5, 3, 8 // bits, -1)[:, :, ::-1].reshape(x.shape)
    assert bits == 8 or not np.array_equal(turned, x)


@pytest.mark.parametrize("axis", [KEYS, VALUES])
@pytest.mark.parametrize("bits", [2, 4])
def test_codes_are_numpy_s(bits, axis):
    """Planted: bits^2 - 1 levels, which is right at 2 bits; the other axis."""
    x = blocks()
    found = back(x, PLAIN._replace(bits=bits), axis)
    close = lambda due: np.mean(np.abs(found - due) < 1e-4)
    # A tie may round to either side in float32: less than one in a thousand.
    assert close(by_hand(x, 2**bits - 1, axis)) > 0.999
    same = bits**2 - 1 == 2**bits - 1
    assert (close(by_hand(x, bits**2 - 1, axis)) > 0.999) == same
    assert close(by_hand(x, 2**bits - 1, 1 - axis)) < 0.5


@pytest.mark.parametrize("axis", [KEYS, VALUES])
def test_the_error_is_half_a_step(axis):
    x = blocks()
    coded = residual_codes.compress(jnp.asarray(x), PLAIN, axis)
    steps = np.repeat(np.asarray(coded.scale), N if axis == KEYS else GROUP, -1)
    steps = steps.swapaxes(1, 2) if axis == KEYS else steps
    assert (np.abs(back(x, PLAIN, axis) - x) <= steps / 2 * (1 + 1e-4)).all()


@pytest.mark.parametrize("axis", [KEYS, VALUES])
def test_constant_groups_are_exact(axis, monkeypatch):
    """Planted: no least range, so that codes are 0 divided by 0."""
    x = np.full((1, N, D), 0.3, np.float32)
    divides = lambda: bool((residual_codes.compress(x, PLAIN, axis).scale > 0).all())
    assert np.array_equal(back(x, PLAIN, axis), x) and divides()
    monkeypatch.setattr(residual_codes, "EPSILON", 0.0)
    assert not divides()


@pytest.mark.parametrize("axis", [KEYS, VALUES])
def test_a_full_rank_is_exact(axis):
    """Planted: one rank fewer."""
    x, rule = blocks(), PLAIN._replace(rank=D)
    assert error(x, rule, axis) < 1e-5
    assert error(x, rule._replace(rank=D - 1), axis) > 1e-4


def test_the_rest_is_nearly_the_best_of_its_rank():
    """Against the SVD in float64; planted: a random subspace."""
    rng = np.random.default_rng(3)
    u, v = rng.normal(size=(N, D)), rng.normal(size=(D, D))
    x = (u * 0.7 ** np.arange(D)) @ v
    for rank in (1, 4, 8):
        a, b = residual_codes.low_rank(jnp.asarray(x[None], jnp.float32), rank)
        found = np.linalg.norm(x - np.asarray(a[0] @ b[0].T))
        best = np.sqrt((np.linalg.svd(x)[1][rank:] ** 2).sum())
        assert found <= 1.05 * best
        basis = np.linalg.qr(rng.normal(size=(N, rank)))[0]
        assert np.linalg.norm(x - basis @ (basis.T @ x)) > 1.05 * best


def test_more_of_anything_errs_less():
    """In bits, rank and outliers, for both axes."""
    x = blocks()
    for axis in (KEYS, VALUES):
        for name, values in (
            ("bits", (2, 4, 8)),
            ("rank", (0, 2, 4, 16)),
            ("outliers", (0.0, 0.02, 0.1, 0.3)),
        ):
            errors = [error(x, PLAIN._replace(**{name: v}), axis) for v in values]
            assert errors == sorted(errors, reverse=True), (axis, name, errors)


@pytest.mark.parametrize("axis", [KEYS, VALUES])
def test_outliers_are_exact(axis):
    """The k largest and smallest of each vector; planted: without them."""
    x, rule = blocks(), PLAIN._replace(outliers=0.1, rank=2)
    length = N if axis == KEYS else D
    k = residual_codes.ends(rule, length)
    assert k == int(np.ceil(0.05 * length))
    y = x.swapaxes(1, 2) if axis == KEYS else x
    order = np.argsort(y, -1, kind="stable")
    at = np.concatenate([order[..., :k], order[..., -k:]], -1)

    def exact(rule):
        found = back(x, rule, axis)
        found = found.swapaxes(1, 2) if axis == KEYS else found
        pick = lambda z: np.take_along_axis(z, at, -1)
        return np.array_equal(pick(found), pick(y))

    assert exact(rule) and not exact(rule._replace(outliers=0.0))


@pytest.mark.parametrize("axis", [KEYS, VALUES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_the_closed_form(axis, dtype):
    """Planted: without the outliers' places."""
    rule, width = Rule(2, GROUP, 2, 0.02), 32 if dtype == "float32" else 16
    empty = residual_codes.empty(rule, axis, (2, 3), N, D, dtype)
    found = 8 * sum(x.size * x.dtype.itemsize for x in empty) / (6 * N * D)
    due = residual_codes.bits_per_element(rule, axis, N, D, width)
    assert found == pytest.approx(due)
    length = N if axis == KEYS else D
    places = 16 * residual_codes.ends(rule, length) / length
    assert found != pytest.approx(due - places)


def test_columns_become_orthonormal():
    """As QR makes them, but for signs; a column that repeats one becomes 0.

    Planted: nearly equal columns, of which one projection leaves an angle.
    """
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, N, 4)).astype(np.float32)
    q = np.asarray(residual_codes.orthonormal(jnp.asarray(x)))
    assert np.abs(np.abs(q) - np.abs(np.linalg.qr(x)[0])).max() < 1e-5
    x[..., 2] = x[..., 0] + 1e-3 * x[..., 2]
    q = np.asarray(residual_codes.orthonormal(jnp.asarray(x)))
    assert np.abs(q.swapaxes(1, 2) @ q - np.eye(4)).max() < 1e-5
    first = x[..., 0] / np.linalg.norm(x[..., 0], axis=1, keepdims=True)
    once = x[..., 2] - first * (first * x[..., 2]).sum(1, keepdims=True)
    once /= np.linalg.norm(once, axis=1, keepdims=True)
    assert np.abs((first * once).sum(1)).max() > 1e-5
    x[..., 2] = 2 * x[..., 0]
    q = np.asarray(residual_codes.orthonormal(jnp.asarray(x)))
    assert np.abs(q[..., 2]).max() == 0 and np.abs(q[..., 3]).max() > 0
