"""decoding/transforms/eta.py."""

import numpy as np
import pytest

from decoding.transforms import epsilon, eta
from models.errors import MethodError
from tests.decoding.transforms.samplers import kept

FLAT = [0.3, 0.2, 0.2, 0.15, 0.1, 0.05]  # H = 1.667 nats: eta = 0.0845 of 0.2
STEEP = [0.94, 0.03, 0.02, 0.01]  # H = 0.288: eta = 0.2 of 0.2, 0.0236 of 0.001


def test_by_hand():
    entropy = -sum(p * np.log(p) for p in FLAT)
    assert 0.05 < np.sqrt(0.2) * np.exp(-entropy) < 0.1
    assert kept(eta.transform(0.2), FLAT) == [0, 1, 2, 3, 4]
    assert kept(eta.transform(0.2), STEEP) == [0]
    assert kept(eta.transform(0.015), STEEP) == [0, 1, 2]  # the bar is epsilon itself
    assert kept(eta.transform(0.0), STEEP) == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [4e-3, 0.2])
def test_equals_hf(parity, value):
    parity(f"eta/{value}", eta.transform(value))


def test_fault_a_bar_that_ignores_the_entropy(parity):
    """Planted: epsilon sampling."""
    assert kept(epsilon.transform(0.2), FLAT) == [0, 1, 2]
    with pytest.raises(AssertionError):
        parity("eta/0.2", epsilon.transform(0.2))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_refuses(value):
    with pytest.raises(MethodError, match=r"outside \[0, 1\]"):
        eta.transform(value)
