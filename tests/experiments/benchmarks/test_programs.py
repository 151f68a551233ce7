"""The benchmark `programs`: held-out prompts, scored by hidden examples too."""

import pytest

import models
from experiments.benchmarks import programs
from models.errors import DataError
from training.data import generated_problems


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(programs, "COUNT", 40)
    programs.problems.cache_clear()
    yield
    programs.problems.cache_clear()


def test_answers_of_the_set():
    """Planted: answers of other problems, and a table of the public examples."""
    problems = programs.problems()
    assert len({p.key for p in problems.values()}) == len(problems) == 40
    for text, problem in problems.items():
        assert generated_problems.is_held(problem.key)
        assert programs.score(text + problem.answer) == 1
        assert programs.score(text) == 0
    answers = [p.answer for p in problems.values()]
    others = [*answers[1:], answers[0]]
    assert not any(
        programs.score(text + answer) for text, answer in zip(problems, others)
    )


def test_prompts():
    lm = models.load("tiny")
    (prompt,) = programs.prompts(lm, count=1)
    assert lm.tokenizer.decode(prompt) in programs.problems()
    longest = max(len(p.answer) for p in programs.problems().values())
    assert longest <= 2 * programs.NEW_TOKENS  # a token holds two characters and more


def test_unknown_prompts():
    text = "[1,2]->3\n[2,3]->5\n[9,9]->18\nsum(x)\n"
    with pytest.raises(DataError, match="is no prompt of the benchmark"):
        programs.score(text)
