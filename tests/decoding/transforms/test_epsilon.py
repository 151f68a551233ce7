"""decoding/transforms/epsilon.py."""

import pytest

from decoding.transforms import epsilon
from models.errors import MethodError
from tests.decoding.transforms.samplers import kept

P = [0.5, 0.25, 0.15, 0.1]


def test_by_hand():
    assert kept(epsilon.transform(0.12), P) == [0, 1, 2]
    assert kept(epsilon.transform(0.0), P) == [0, 1, 2, 3]
    assert kept(epsilon.transform(0.9), P) == [0]  # the best stays


@pytest.mark.parametrize("value", [3e-3, 0.1])
def test_equals_hf(parity, value):
    parity(f"epsilon/{value}", epsilon.transform(value))


def test_fault_the_bar_of_min_p(parity):
    """Planted: a bar relative to the best token."""
    assert [i for i, p in enumerate(P) if p >= 0.12 * P[0]] != [0, 1, 2]
    with pytest.raises(AssertionError):
        parity("epsilon/0.1", epsilon.transform(0.05))


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_refuses(value):
    with pytest.raises(MethodError, match=r"outside \[0, 1\]"):
        epsilon.transform(value)
