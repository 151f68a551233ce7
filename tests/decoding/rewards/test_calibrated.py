"""decoding/rewards/calibrated.py: uniform under the reference, by host and device."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import kit, rewards
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import Reward
from decoding.rewards import calibrated
from models.errors import MethodError


def given(values) -> Reward:
    """A reward of known values, on the host."""
    return Reward(ask=lambda samples: values[: len(samples)])


def found(values, reference, **fields) -> list[float]:
    fields = {"form": "identity", **fields}
    reward = calibrated.reward(given(values), reference, **fields)
    return reward.ask([Sample([1], "b", [-1.0], True)] * len(values))


def test_by_hand():
    """Below, between, equal to one and to two references, above."""
    reference = [2.0, 0.0, 2.0, 1.0]
    assert found([-1, 0.5, 1, 2, 3], reference) == [0, 0.25, 0.375, 0.75, 1]
    assert found([1, 2], reference, form="best_of_n", t=2.0) == pytest.approx(
        [np.exp(0.75), np.exp(1.5)]
    )
    assert found([1, 2], reference, form="worst_of_n", t=2.0) == pytest.approx(
        [-np.exp(-0.75), -np.exp(-1.5)]
    )
    # Planted: equal references count whole.
    whole = [np.mean(np.asarray(reference) <= x) for x in (1, 2)]
    assert found([1, 2], reference) != whole


def test_uniform_under_the_reference():
    """K-S at n = 4,096 draws against 4,096 others, also where half the rewards are one.

    The level is 1e-3: 1.95 * sqrt(2 / n). A monotone change of the reward changes
    nothing.
    """
    draws = np.random.default_rng(0).standard_normal((2, 4096))

    def distance(ranks) -> float:
        grid = np.arange(1, len(ranks) + 1) / len(ranks)
        return float(np.abs(np.sort(ranks) - grid).max())

    bound = 1.95 * np.sqrt(2 / 4096)
    ranks = found([*draws[0]], draws[1])
    assert distance(ranks) < bound
    assert found([*np.exp(draws[0])], np.exp(draws[1])) == ranks
    halved = np.maximum(draws, 0)  # equal ones: the mean is 1/2 all the same
    assert abs(np.mean(found([*halved[0]], halved[1])) - 0.5) < 4 * 0.29 / 64
    # Planted: against the samples of another model.
    assert distance(found([*draws[0]], draws[1] + 0.3)) > bound


def test_the_device_gives_the_same():
    """keywords on the device; a reference for each prompt."""
    table = ((0.0, 0.5, 1.0), (0.25, 0.5, 0.75), (1.0, 1.0, 0.0), (0.5, 0.5, 0.5))
    spec = Spec("rewards/calibrated", reference=table, form="worst_of_n", t=3.0)
    under = rewards.values(rewards.UNDER)
    rows = zip(under, table)
    ranks = [
        (np.mean(np.less(r, v)) + np.mean(np.less_equal(r, v))) / 2 for v, r in rows
    ]
    np.testing.assert_allclose(
        rewards.values(spec), -np.exp(-3 * np.array(ranks)), 1e-5
    )
    swapped = Spec(
        "rewards/calibrated", reference=table[::-1], form="worst_of_n", t=3.0
    )
    assert not np.allclose(rewards.values(swapped), rewards.values(spec))  # planted


def test_refuses():
    with pytest.raises(MethodError, match="form='log'"):
        calibrated.reward(given([]), [1.0], form="log")
    with pytest.raises(MethodError, match="t=0"):
        calibrated.reward(given([]), [1.0], t=0)
    with pytest.raises(MethodError, match="reference has the shape"):
        calibrated.reward(given([]), [])
    with pytest.raises(MethodError, match="reference="):
        calibrated.reward(given([]), [[1.0], [1.0, 2.0]])
    with pytest.raises(MethodError, match="2 rows for 4 prompts"):
        calibrated.reward(given([]), [[1.0], [2.0]]).init(4)
    one = Spec("rewards/calibrated", reference=(1.0,))
    method = kit.decoding.Method(search=Spec("search/best_of_n"), rewards=(one,))
    with pytest.raises(MethodError, match="needs 'inner': put a reward before it"):
        kit.generate(method, 0.8)
