"""decoding/transforms/min_new_tokens.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import min_new_tokens
from models.errors import MethodError


@pytest.mark.parametrize("count", [5, 6])  # the golden text has five new tokens
def test_equals_hf(parity, count):
    parity(f"min_new_tokens/{count}", min_new_tokens.transform(count, (2, 17)))


def test_fault_an_off_by_one(parity):
    with pytest.raises(AssertionError):
        parity("min_new_tokens/6", min_new_tokens.transform(5, (2, 17)))


def test_a_finished_constraint_may_end():
    made = min_new_tokens.transform(3, (1,))
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    only = jnp.array([-jnp.inf, 0.5, -jnp.inf])
    np.testing.assert_array_equal(made.apply(state, only, {}), only)


def test_without_eos_is_the_identity():
    made = min_new_tokens.transform(3, ())
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    np.testing.assert_array_equal(made.apply(state, jnp.arange(4.0), {}), np.arange(4))


@pytest.mark.parametrize("count", [-1, 1.5, float("nan")])
def test_refuses(count):
    with pytest.raises(MethodError, match="count"):
        min_new_tokens.transform(count, (2,))
