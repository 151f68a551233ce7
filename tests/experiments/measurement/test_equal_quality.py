"""Gains at equal loss: looseness is no merit."""

import numpy as np
import pytest

from experiments.measurement import equal_quality
from experiments.measurement.equal_quality import Counts
from models.errors import DataError

PROMPTS = 40


def setting(rng, loss, gain):
    """Tokens per call, and tokens after texts part, of prompts that differ."""
    calls = rng.integers(20, 40, PROMPTS)
    lost = rng.binomial(60, loss, PROMPTS) if loss else np.zeros(PROMPTS)
    return Counts(
        gain * calls * rng.normal(1, 0.03, PROMPTS), calls, lost, [60] * PROMPTS
    )


def test_by_hand():
    """Halfway between a baseline's two points; nothing where it loses more."""
    base = [Counts([4], [4], [0], [8]), Counts([12], [4], [4], [8])]
    own = {
        "same": Counts([8], [4], [2], [8]),
        "more": Counts([12], [4], [2], [8]),
        "far": Counts([40], [4], [5], [8]),
    }
    found = equal_quality.against(own, base)
    assert found["same"]["base"] == 2 and found["same"]["gain"] == 0
    assert found["more"]["gain"] == pytest.approx(0.5)
    assert found["far"]["better"] is None and found["far"]["gained"] == 10
    # A setting that loses more and gains less than another does the baseline no harm.
    worse = [*base, Counts([4], [4], [3], [8])]
    assert equal_quality.against(own, worse)["same"]["base"] <= 2
    lines = equal_quality.table("t", "loss", found, "tokens/call", "rule")["lines"]
    assert lines[0][3:] == ["2.00", "+0.0 % (+0.0 to +0.0)", "even"]
    assert lines[2][3:] == ["–", "–", "not matched"]


def test_looseness_is_no_merit():
    """A baseline gains 1 + 3 loss, n = 40 prompts, seed 0. Its own law at another loss
    is even with it; 15 % above it is better. Planted: without matching the loosest
    setting beats the exact one by far."""
    rng = np.random.default_rng(0)
    base = [setting(rng, loss, 1 + 3 * loss) for loss in (0.0, 0.1, 0.3, 0.6)]
    own = {
        "even": setting(rng, 0.4, 2.2),
        "better": setting(rng, 0.2, 1.6 * 1.15),
        "worse": setting(rng, 0.2, 1.6 * 0.85),
    }
    found = equal_quality.against(own, base)
    assert [found[name]["better"] for name in own] == ["even", "yes", "no"]
    assert found["better"]["ci95"][0] < 0.15 < found["better"]["ci95"][1]
    exact = equal_quality.against(
        {"even": own["even"]._replace(lost=[0] * PROMPTS)}, base
    )
    assert exact["even"]["better"] == "yes" and exact["even"]["gain"] > 1


def test_no_baseline():
    with pytest.raises(DataError, match="no baseline"):
        equal_quality.against({}, [])
