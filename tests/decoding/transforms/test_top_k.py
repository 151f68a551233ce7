"""decoding/transforms/top_k.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import top_k
from models.errors import MethodError


@pytest.mark.parametrize("k", [1, 5, 50, 1000])
def test_equals_hf(parity, k):
    parity(f"top_k/{k}", top_k.transform(k))


def test_fault_an_off_by_one(parity):
    with pytest.raises(AssertionError):
        parity("top_k/5", top_k.transform(6))


def test_ties_are_all_kept():
    made = top_k.transform(2)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    out = made.apply(state, jnp.array([1.0, 3.0, 2.0, 2.0, -jnp.inf]), {})
    np.testing.assert_array_equal(np.isfinite(out), [0, 1, 1, 1, 0])


@pytest.mark.parametrize("k", [0, -3, 2.5, float("nan")])
def test_refuses(k):
    with pytest.raises(MethodError, match="leave top_k out"):
        top_k.transform(k)
