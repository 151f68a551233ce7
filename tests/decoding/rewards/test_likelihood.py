"""decoding/rewards/likelihood.py: sums of log-probabilities by hand."""

import pytest

from decoding.hypotheses.rank import Sample
from decoding.rewards import likelihood
from models.errors import MethodError

FOUND = [Sample([1, 2], None, [-1.0, -2.0], True), Sample([3], None, [-1.75], False)]


def test_by_hand():
    assert likelihood.reward().ask(FOUND) == [-1.5, -1.75]
    assert likelihood.reward(0.0).ask(FOUND) == [-3.0, -1.75]
    # Planted: the sum, whatever the penalty is.
    assert likelihood.reward().ask(FOUND) != [sum(s.logprobs) for s in FOUND]


def test_refuses():
    with pytest.raises(MethodError, match="length_penalty=nan"):
        likelihood.reward(float("nan"))
