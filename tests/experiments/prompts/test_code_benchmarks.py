"""Tests of benchmark items, on items written here in the benchmarks' formats."""

import pytest

from decoding.execution import tests_runner
from experiments.prompts import code_benchmarks
from models.errors import DataError

MBPP = {
    "text": "Write a function to double a number.",
    "code": "def double(x):\r\n\treturn 2 * x",
    "task_id": 1,
    "test_setup_code": "",
    "test_list": ["assert double(1) == 2", "assert double(2) == 4", "assert not 1"],
    "challenge_test_list": ["assert double(9) == 18"],
}

PROMPT = '''import math


def helper(x):
    """
    >>> helper(1)
    7
    """
    return 7


def f(x, y=None):
    """ Double x.
    >>> f(2)  # twice
    4
    >>> f("a\\n", 3)
    'a\\na\\n'
    >>> many = [1,
    ...         2]
    >>> f(many)
    [1, 2, 1, 2]

    >>> f(None)
    >>> f(1) == 2
    >>> f(1.0) < 2
    False
    >>> f(frozenset())
    frozenset()
    >>> f(1, 2, 3)
    Traceback (most recent call last):
    TypeError: f() takes from 1 to 2 positional arguments but 3 were given
    f(5) => 10
    """
'''
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "f",
    "canonical_solution": "    return x and 2 * x if x is not None else None\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}


def test_mbpp(monkeypatch):
    public, hidden = code_benchmarks.mbpp(MBPP)
    assert public == ["assert double(1) == 2"]
    assert hidden == ["assert double(2) == 4", "assert not 1"]
    item = {**MBPP, "test_setup_code": "x = 1", "test_list": ["assert double(x) == 2"]}
    public, hidden = code_benchmarks.mbpp(item)
    assert hidden == []
    monkeypatch.setenv(tests_runner.SWITCH, "1")
    verdict = tests_runner.run(MBPP["code"], public, allow_execution=True)
    assert verdict.passed == (True,)


def test_humaneval(monkeypatch):
    public, hidden = code_benchmarks.humaneval(HUMANEVAL)
    assert public == [
        "assert (f(2)) == (4)",
        "assert (f('a\\n', 3)) == ('a\\na\\n')",
        "many = [1,\n        2]\nassert (f(many)) == ([1, 2, 1, 2])",
        "assert (f(None)) is None",
        "assert f(1) == 2",
        "assert (f(1.0) < 2) == (False)",
        "assert repr(f(frozenset())) == 'frozenset()'",
    ]
    assert len(hidden) == 1 and hidden[0].endswith("\ncheck(f)\n")
    monkeypatch.setenv(tests_runner.SWITCH, "1")
    right = PROMPT + HUMANEVAL["canonical_solution"]
    # Planted: a program that is right for whole numbers alone.
    wrong = PROMPT + "    return 2 * int(x)\n"
    tests = public + hidden
    verdicts = tests_runner.run_all([right, wrong], [tests] * 2, allow_execution=True)
    assert verdicts[0].share == 1, verdicts[0]
    assert verdicts[1].passed == (True, *[False] * 3, True, True, False, True)


def test_no_examples():
    """Docstrings of other formats, or none, give no public test."""
    for prompt in ('def f(x):\n    """f(1) => 2"""\n', "def f(x):\n    pass\n"):
        public, hidden = code_benchmarks.humaneval({**HUMANEVAL, "prompt": prompt})
        assert public == [] and len(hidden) == 1


@pytest.mark.parametrize(
    "read, change, words",
    [
        ("mbpp", {"test_list": []}, "item 1 has no list of asserts"),
        ("humaneval", {"test": None}, "'HumanEval/0': give texts"),
        ("humaneval", {"prompt": "def f("}, "no Python"),
        ("humaneval", {"entry_point": "g"}, "does not define 'g'"),
    ],
)
def test_malformed(read, change, words):
    item = {"mbpp": MBPP, "humaneval": HUMANEVAL}[read]
    with pytest.raises(DataError, match=words):
        getattr(code_benchmarks, read)({**item, **change})
