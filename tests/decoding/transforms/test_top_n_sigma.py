"""decoding/transforms/top_n_sigma.py."""

import numpy as np
import pytest

from decoding.transforms import temperature, top_n_sigma
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

LOGITS = [6.0, 4.0, 3.0, 0.0, -3.0]  # mean 2, deviation sqrt(10) = 3.162


def supports(n: float, logits=LOGITS) -> list[int]:
    return np.flatnonzero(np.isfinite(run(top_n_sigma.transform(n), logits))).tolist()


def test_by_hand():
    assert supports(1.0) == [0, 1, 2]
    assert supports(0.5) == [0]
    assert supports(2.0) == [0, 1, 2, 3]


def test_the_temperature_does_not_change_the_set():
    for heat in (0.3, 2.5):
        heated = run(temperature.transform(heat), LOGITS)
        assert supports(1.0, heated) == supports(1.0)


def test_forbidden_tokens_do_not_count():
    """Planted: with -inf among the logits the deviation would be NaN."""
    assert supports(1.0, [*LOGITS, -np.inf, -np.inf]) == supports(1.0)
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.std([*LOGITS, -np.inf]))
    assert supports(1.0, [2.0, -np.inf]) == [0]


def test_fault_a_bar_from_the_mean():
    """Planted: logits above the mean plus a deviation."""
    z = np.array(LOGITS)
    assert np.flatnonzero(z >= z.mean() + z.std()).tolist() != supports(1.0)


@pytest.mark.parametrize("n", [0, -1.0, float("nan")])
def test_refuses(n):
    with pytest.raises(MethodError, match="the paper uses 1"):
        top_n_sigma.transform(n)
