"""decoding/rewards/steps.py: rewards of beginnings, on the host and on the device."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import kit, rewards
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import PREFIX, Reward
from decoding.rewards import steps
from models.errors import MethodError

TAKE = {"product": np.prod, "least": np.min, "mean": np.mean, "last": lambda x: x[-1]}


def steps_of(tokens: list[int], mark: int = 0) -> list[list[int]]:
    """The beginnings that end with `mark`, and the whole."""
    ends = [i + 1 for i, token in enumerate(tokens) if token == mark]
    return [tokens[:i] for i in sorted({*ends, len(tokens)})]


@pytest.mark.parametrize("reduce", TAKE)
def test_the_device_by_hand(reduce):
    """keywords ("b", "ca") of beginnings that end with the letter a."""
    found = rewards.values(Spec("rewards/steps", reduce=reduce, separator="a"))

    def worth(tokens: list[int]) -> float:
        text = kit.TARGET.tokenizer.decode(tokens)
        return (("b" in text) + ("ca" in text)) / 2

    each = [[worth(t) for t in steps_of(text)] for text in rewards.TEXTS]
    np.testing.assert_allclose(found, [TAKE[reduce](values) for values in each], 1e-6)
    if reduce != "last":  # planted: the whole text alone
        assert found.tolist() != [values[-1] for values in each]


@pytest.mark.parametrize("reduce", TAKE)
def test_a_head_by_hand(reduce):
    """The values of a head at the ends of the steps."""
    head = Spec("rewards/value_head")
    found = rewards.values(
        Spec("rewards/steps", reduce=reduce, separator="a"), under=head
    )
    each = []
    for i, text in enumerate(rewards.TEXTS):
        texts = steps_of(text)
        before = [*rewards.TEXTS[:i]]
        each.append([rewards.values(head, [*before, part])[i] for part in texts])
    np.testing.assert_allclose(found, [TAKE[reduce](v) for v in each], 1e-4)


def test_the_host_asks_once_for_all_beginnings():
    calls = []

    def ask(samples):
        calls.append([s.text for s in samples])
        return [len(s.tokens) + sum(s.logprobs) for s in samples]

    inner = Reward(ask=ask, level=PREFIX)
    reward = steps.reward(inner, kit.TARGET.tokenizer, kit.VOCAB, "mean", "a")
    found = reward.ask([Sample([0, 1, 0, 2], "abac", [-1.0] * 4, True)] * 2)
    assert calls == [["a", "aba", "abac"] * 2] and found == [0.0, 0.0]
    last = Sample([1, 0], "ba", [-1.0, -0.5], False)
    assert reward.ask([last]) == [0.5]  # the last step ends with the text


def test_refuses():
    letters = kit.TARGET.tokenizer
    with pytest.raises(MethodError, match="reduce='sum'"):
        steps.reward(Reward(level=PREFIX), letters, kit.VOCAB, "sum")
    with pytest.raises(MethodError, match="values whole texts alone"):
        steps.reward(Reward(), letters, kit.VOCAB)
    with pytest.raises(MethodError, match="lies in no token"):
        steps.reward(Reward(level=PREFIX), letters, kit.VOCAB, separator="\n")
