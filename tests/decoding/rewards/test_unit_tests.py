"""decoding/rewards/unit_tests.py: programs of a prompt and a text, and their tests."""

import pytest

from decoding.hypotheses.rank import Sample
from decoding.rewards import unit_tests
from models.errors import MethodError

TESTS = ("assert f(2) == 4", "assert f(3) == 9", "assert f(0) == 0")


def sample(text: str, request: int = 0) -> Sample:
    return Sample([1], text, [-1.0], True, request, "def f(x):\n    return ")


def test_the_share_of_tests():
    reward = unit_tests.reward(TESTS, allow_execution=True)
    texts = ("x * x", "x + 2", "x +", "0", "x * x\nimport os; os._exit(0)")
    found = reward.ask([sample(text) for text in texts])
    assert found == [1.0, pytest.approx(1 / 3), 0.0, pytest.approx(1 / 3), 0.0]
    bare = unit_tests.reward(TESTS, allow_execution=True, program="{text}")
    assert bare.ask([sample("x * x")]) == [0.0]  # planted: the prompt is left out


def test_tests_of_each_prompt_and_braces():
    lists = (("assert f(1) == {1}",), ("assert f(1) == 1", "assert f(2) == 1"))
    reward = unit_tests.reward(lists, allow_execution=True)
    assert reward.ask([sample("{x}", 0), sample("1", 1)]) == [1.0, 1.0]
    assert reward.ask([sample("{text}", 0)]) == [0.0]  # nothing is put in twice
    with pytest.raises(MethodError, match="2 lists for 3 prompts"):
        reward.init(3)


def test_off_unless_both_switches_are_on(monkeypatch):
    with pytest.raises(MethodError, match="running programs is off"):
        unit_tests.reward(TESTS)
    monkeypatch.delenv("DECODAX_ALLOW_EXECUTION")
    with pytest.raises(MethodError, match="DECODAX_ALLOW_EXECUTION=None"):
        unit_tests.reward(TESTS, allow_execution=True)


def test_refuses():
    with pytest.raises(MethodError, match="give one test or more"):
        unit_tests.reward((), allow_execution=True)
