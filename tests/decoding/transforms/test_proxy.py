"""Proxy tuning. Through the loop: tests/decoding/loops/test_streams.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import proxy
from models.errors import MethodError

Z, TUNED, UNTUNED = (
    jnp.array([1.0, 2.0, 3.0]),
    jnp.array([0.5, 0.0, -1.0]),
    jnp.array([0.25, 1.0, -1.0]),
)


def run(alpha: float, aux: dict) -> np.ndarray:
    made = proxy.transform(alpha)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    return np.asarray(made.apply(state, Z, aux))


def test_by_hand():
    aux = {"expert": TUNED, "amateur": UNTUNED}
    np.testing.assert_array_equal(run(1.0, aux), [1.25, 1.0, 3.0])
    np.testing.assert_array_equal(run(0.0, aux), Z)
    np.testing.assert_array_equal(run(1.0, {}), Z)


def test_fault_expert_and_amateur_swapped():
    """Planted: what tuning changed is taken away."""
    swapped = run(1.0, {"expert": UNTUNED, "amateur": TUNED})
    assert swapped.tolist() == [0.75, 3.0, 3.0]
    assert swapped.tolist() != run(1.0, {"expert": TUNED, "amateur": UNTUNED}).tolist()


def test_refuses():
    with pytest.raises(MethodError, match="alpha=inf"):
        proxy.transform(float("inf"))
