"""decoding/transforms/typical.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import top_p, typical
from models.errors import MethodError


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.95])
def test_equals_hf(parity, mass):
    parity(f"typical/{mass}", typical.transform(mass))


def test_fault_the_nucleus(parity):
    with pytest.raises(AssertionError):
        parity("typical/0.5", top_p.transform(0.5))


def test_by_hand():
    # H = 1.2130 nats; the surprises are 0.693, 1.386, 2.079, 2.079, so that the second
    # token is nearest to H, the first next: the best token goes when tau <= 0.25.
    logits = jnp.log(jnp.array([0.5, 0.25, 0.125, 0.125]))
    for mass, kept in ((0.2, [0, 1, 0, 0]), (0.7, [1, 1, 0, 0]), (0.8, [1, 1, 1, 1])):
        made = typical.transform(mass)
        state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
        np.testing.assert_array_equal(np.isfinite(made.apply(state, logits, {})), kept)


def test_forbidden_tokens_stay_forbidden_without_nan():
    made = typical.transform(0.9)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    out = made.apply(state, jnp.array([0.0, -jnp.inf, -jnp.inf]), {})
    np.testing.assert_array_equal(out, [0.0, -np.inf, -np.inf])


@pytest.mark.parametrize("mass", [0, 1.5, float("nan")])
def test_refuses(mass):
    with pytest.raises(MethodError, match=r"outside \(0, 1\]"):
        typical.transform(mass)
