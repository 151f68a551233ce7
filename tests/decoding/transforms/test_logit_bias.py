"""decoding/transforms/logit_bias.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import logit_bias
from models.errors import MethodError


@pytest.mark.parametrize("bias", [{4: 2.5, 90: -7.0}, ((90, -7.0), (4, 2.5))])
def test_equals_hf(parity, bias):
    parity("logit_bias/", logit_bias.transform(bias, 101))


def test_fault_a_shifted_id(parity):
    with pytest.raises(AssertionError):
        parity("logit_bias/", logit_bias.transform({5: 2.5, 90: -7.0}, 101))


def test_no_bias_is_the_identity():
    made = logit_bias.transform({}, 5)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    np.testing.assert_array_equal(made.apply(state, jnp.arange(5.0), {}), np.arange(5))


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ({101: 1.0}, "no id of the vocabulary"),
        ({-1: 1.0}, "no id of the vocabulary"),
        ({3: float("-inf")}, "use ban_tokens"),
        ({3: float("nan")}, "use ban_tokens"),
        (((3, 1.0), (3, 2.0)), "merge"),
    ],
)
def test_refuses(bias, words):
    with pytest.raises(MethodError, match=words):
        logit_bias.transform(bias, 101)
