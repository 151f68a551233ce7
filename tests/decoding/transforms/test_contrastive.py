"""Contrastive decoding. Through the loop: tests/decoding/loops/test_streams.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import contrastive
from models.errors import MethodError

LARGE = jnp.log(jnp.array([0.5, 0.3, 0.16, 0.04]))
SMALL = jnp.log(jnp.array([0.4, 0.1, 0.1, 0.4]))


def run(alpha: float, beta: float, aux: dict | None = None) -> np.ndarray:
    made = contrastive.transform(alpha, beta)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    return np.asarray(made.apply(state, LARGE, {"amateur": SMALL} | (aux or {})))


def test_by_hand():
    """alpha = 0.1 forbids what has less than a tenth of the best token's 0.5."""
    z = run(0.1, 0.5)
    p = np.sqrt([0.5 * 0.4, 0.3 * 0.1, 0.16 * 0.1])
    np.testing.assert_allclose(np.exp(z[:3]), p, rtol=1e-5)
    assert z[3] == -np.inf


def test_the_ends_of_beta():
    np.testing.assert_allclose(run(0.0, 1.0), LARGE, rtol=1e-5)
    np.testing.assert_allclose(run(0.0, 0.0), SMALL, rtol=1e-5)


def test_a_draft_has_no_stream():
    made = contrastive.transform()
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    assert made.apply(state, LARGE, {}) is LARGE
    assert made.streams == ("amateur",)


def test_fault_the_models_in_each_other_s_place():
    """Planted: the small model's logits mask and weigh as the large one's."""
    made = contrastive.transform(0.1, 0.5)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    swapped = made.apply(state, SMALL, {"amateur": LARGE})
    assert not np.array_equal(np.isfinite(swapped), np.isfinite(run(0.1, 0.5)))


@pytest.mark.parametrize("arguments", [(1.5, 0.5), (0.1, float("nan"))])
def test_refuses(arguments):
    with pytest.raises(MethodError, match=r"(alpha|beta)="):
        contrastive.transform(*arguments)
