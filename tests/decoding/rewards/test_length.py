"""decoding/rewards/length.py: tokens by hand."""

import pytest

from decoding import Spec
from decoding.conformance import kit, rewards
from decoding.rewards import length
from models.errors import MethodError


def test_by_hand():
    found = rewards.values(Spec("rewards/length", target=4)).tolist()
    assert found == [-abs(len(text) - 4) for text in rewards.TEXTS]
    # Planted: the prompt is counted.
    whole = [len(p) + len(t) for p, t in zip(kit.PROMPTS, rewards.TEXTS)]
    assert found != [-abs(size - 4) for size in whole]


def test_refuses():
    with pytest.raises(MethodError, match="target=0"):
        length.reward(0)
