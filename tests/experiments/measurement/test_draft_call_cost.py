"""Prices of chains: who is chosen, what is paid, and luck that is not skill."""

import numpy as np
import pytest

from experiments.measurement import draft_call_cost
from models.errors import DataError


def counts(tokens, target, draft):
    return {"tokens": tokens, "target": target, "draft": draft}


CALLS = {
    "fixed 1": counts([10, 10, 10, 10], [5, 5, 5, 5], [5, 5, 5, 5]),
    "fixed 4": counts([10, 10, 10, 10], [3, 3, 3, 3], [12, 12, 12, 12]),
    "h 0.3": counts([10, 10, 10, 10], [3, 4, 3, 4], [8, 8, 8, 8]),
    "h 0.9": counts([10, 10, 10, 10], [4, 3, 4, 3], [8, 8, 8, 8]),
}


def test_by_hand():
    """Even prompts are decoded with what is best on the odd ones, and the reverse."""
    cheap, dear = (draft_call_cost.chosen(CALLS, "fixed", c) for c in (0.05, 0.9))
    assert cheap.names == ["fixed 4"] * 2 and dear.names == ["fixed 1"] * 2
    assert cheap.rate == pytest.approx(40 / (12 + 0.05 * 48))
    own = draft_call_cost.chosen(CALLS, "h", 0.1)
    # 0.3 is best on even prompts, where it may not be used.
    assert own.names == ["h 0.9", "h 0.3"]
    assert own.spent.tolist() == pytest.approx([4.8] * 4)
    row = draft_call_cost.compared(CALLS, [0.1], "h", ["fixed"])[0]
    gain = row["gains"]["fixed"]
    assert gain["gain"] == pytest.approx(4.2 / 4.8 - 1) and gain["better"] == "no"
    said = {"h": "the threshold", "fixed": "a length"}
    found = draft_call_cost.table([row], "h", said)
    assert found["lines"][0][0] == "0.1" and found["lines"][0][-1] == "no"
    assert "at no c of 1 tried" in found["notes"][-1]
    assert draft_call_cost.plot([row], "h", said)["series"][0]["y"] == [
        row["ways"]["h"]["tokens_per_cost"]
    ]


def test_draft_calls_are_paid():
    """A length of 8 takes fewer target calls than one of 2 and costs more: planted, a
    price without them prefers it."""
    calls = {
        "fixed 2": counts([12] * 2, [4] * 2, [8] * 2),
        "fixed 8": counts([12] * 2, [3] * 2, [24] * 2),
    }
    assert draft_call_cost.chosen(calls, "fixed", 0.3).names == ["fixed 2"] * 2
    assert draft_call_cost.chosen(calls, "fixed", 0.0).names == ["fixed 8"] * 2


def test_the_best_of_many_is_not_better_by_luck():
    """40 settings of the same law against one, 40 studies of 16 prompts, seed 0: the
    mean gain is within 4 standard errors of 0. Planted: chosen where it is judged."""
    rng = np.random.default_rng(0)
    fair, lucky = [], []
    for _ in range(40):
        target = rng.integers(20, 40, (41, 16))
        names = ["fixed 1", *(f"h {i}" for i in range(40))]
        calls = {
            name: counts([100] * 16, row.tolist(), [0] * 16)
            for name, row in zip(names, target)
        }
        base = draft_call_cost.chosen(calls, "fixed", 0.1)
        fair.append(draft_call_cost.chosen(calls, "h", 0.1).rate / base.rate - 1)
        best = 1600 / target[1:].sum(1).min()
        lucky.append(best / base.rate - 1)
    error = np.std(fair) / np.sqrt(40)
    assert abs(np.mean(fair)) < 4 * error
    assert np.mean(lucky) > 4 * error


def test_gains_have_the_right_sign():
    """32 prompts, 10 % fewer calls, seed 1; planted: the same way is no better."""
    target = np.random.default_rng(1).integers(20, 40, 32)
    tokens = np.full(32, 100.0)
    less, more = (
        draft_call_cost.Way(["a", "a"], tokens, k * target) for k in (0.9, 1.0)
    )
    assert draft_call_cost.gain(less, more)["better"] == "yes"
    assert draft_call_cost.gain(more, less)["better"] == "no"
    assert draft_call_cost.gain(more, more)["better"] == "even"


def test_mistakes_are_named():
    with pytest.raises(DataError, match="0 settings named 'x'"):
        draft_call_cost.chosen(CALLS, "x", 0.1)
