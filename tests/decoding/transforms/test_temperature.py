"""decoding/transforms/temperature.py."""

import jax.numpy as jnp
import pytest

from decoding import base
from decoding.transforms import temperature
from models.errors import MethodError


@pytest.mark.parametrize("value", [0.3, 0.8, 1.7])
def test_equals_hf(parity, value):
    parity(f"temperature/{value}", temperature.transform(value))


def test_fault_the_inverse(parity):
    with pytest.raises(AssertionError):
        parity("temperature/0.8", temperature.transform(1 / 0.8))


def test_lowest_temperature_stays_finite():
    made = temperature.transform(1e-6)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    out = made.apply(state, jnp.array([1e4, -1e4, -jnp.inf]), {})
    assert jnp.isfinite(out[:2]).all() and out[2] == -jnp.inf
    assert made.advance is None and made.warper and made.domain == "logits"
    assert temperature.CARD.guarantee == base.LAW


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_refuses(value):
    with pytest.raises(MethodError, match="temperature=0"):
        temperature.transform(value)
