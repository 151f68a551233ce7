"""The long-context benchmarks: their cases by hand, their scorers, forced texts."""

import types

import numpy as np
import pytest

import models
from experiments.benchmarks import far_definition, key_value, long_nats, needle
from experiments.benchmarks.long_context import Case, passages, teacher_forced, written
from models.errors import DataError
from models.synthetic import recall
from tests.training import small_trainings

TINY = models.load("tiny")
READER = types.SimpleNamespace(tokenizer=TINY.tokenizer)
RNG = np.random.default_rng(0)
FILES = [("a", tuple(RNG.integers(1, 300, 900))), ("b", tuple(range(1, 700)))]
FORMS = ("code", "prose")


def text(tokens) -> str:
    return TINY.tokenizer.decode(list(tokens))


def shifted(case: Case) -> list[int]:
    """The answer, one place too late."""
    return [0, *case.expected[:-1]]


@pytest.mark.parametrize("module", [needle, key_value, far_definition])
def test_scores(module):
    """Planted: an answer one token too late, and a text that ended early."""
    case = Case((1, 2), 1, (7, 8, 9, 10))
    assert module.score(case, case.expected) == 1
    assert module.score(case, (*case.expected, 5)) == 1
    assert module.score(case, (7, 8, 0, 0)) == 0.5
    assert module.score(case, shifted(case)) == 0
    assert module.score(case, (7,)) == 0.25


@pytest.mark.parametrize("form", FORMS)
def test_needles(form):
    made = needle.cases(READER, FILES, 400, (0.0, 0.5, 1.0), 3, form=form, others=2)
    again = needle.cases(READER, FILES, 400, (0.0, 0.5, 1.0), 3, form=form, others=2)
    assert made == again and len(made) == 9
    assert [case.depth for case in made] == [0.0] * 3 + [0.5] * 3 + [1.0] * 3
    for case in made:
        assert len(case.prompt) == 400
        assert case.prompt[case.start : case.end] == case.expected
        question = case.prompt[case.context :]
        assert case.prompt[case.start - len(question) : case.start] == question
    assert made[0].start < made[3].start < made[6].start
    near = made[-1].distance
    assert near < 60 < 380 < made[0].distance <= 400


@pytest.mark.parametrize("form", FORMS)
def test_pairs(form):
    """Each line is asked for once in as many cases as lines; others are like it."""
    made = key_value.cases(READER, FILES, 400, pairs=6, count=6, form=form)
    assert len({case.start for case in made}) == 6
    for case in made:
        assert len(case.prompt) == 400
        assert case.prompt[case.start : case.end] == case.expected
        question = case.prompt[case.context :]
        assert case.prompt[case.start - len(question) : case.start] == question
        lines = [case.prompt[i : i + len(question)] for i in range(case.context)]
        assert lines.count(question) == 1
        assert sum(line[-2:] == question[-2:] for line in lines) >= 2


def test_pairs_of_the_recall_model():
    """Its own facts are answered whole. Planted: another fact's answer."""
    lm = recall.load(max_positions=512)
    cases = key_value.recalled(256, facts=8, count=4)
    out = written(lm, cases, method="plain")
    scores = [key_value.score(case, text) for case, text in zip(cases, out.tokens)]
    assert scores == [1.0] * 4
    assert cases[0].depth < cases[1].depth < cases[2].depth < cases[3].depth
    wrong = [key_value.score(cases[0], text) for text in out.tokens[1:]]
    assert wrong == [0.25] * 3  # END


SOURCE = """
def first_function(value):
    return value


def another(x):
    return x + 1


PADDING = [{numbers}]
print(another(1), another(2))
print(first_function(another([3])), 5)
"""


def test_far_definitions():
    """The call is asked for whose name stands once before, in its definition."""
    source = SOURCE.format(numbers=", ".join(map(str, range(100))))
    (case,) = far_definition.cases(READER, [("a.py", source)], 1000, 150, 1)
    assert text(case.prompt[case.context :]).startswith("print(first")
    whole = text((*case.prompt, *case.expected))
    assert source.startswith(whole) and "first_function(another" in whole[-40:]
    assert len(case.expected) <= far_definition.NEW_TOKENS
    assert "first_function" in text(case.prompt[case.start : case.end])
    assert 150 <= case.distance <= 1000
    (cut,) = far_definition.cases(READER, [("a.py", source)], 400, 150, 1)
    assert cut.expected == case.expected and cut.distance == case.distance
    assert len(cut.prompt) <= 400 and case.prompt[-len(cut.prompt) :] == cut.prompt
    repeated = source + "\nprint(first_function)\n"
    assert far_definition.cases(READER, [("a.py", repeated)], 1000, 150, 1) == [case]
    earlier = source.replace("print(another(1)", "print(first_function, another(1)")
    with pytest.raises(DataError, match="the files have 0 calls"):
        far_definition.cases(READER, [("a.py", earlier)], 1000, 150, 1)


def test_forced_texts():
    """The loop's nats are those of a whole pass. Planted: one token too late."""
    lm = small_trainings.small_target(1)
    cases = long_nats.cases(FILES, 60, count=3, last=8)
    assert [len(case.prompt) for case in cases] == [52] * 3
    nats = long_nats.nats(lm, cases, method="plain")
    whole = np.asarray([case.nats for case in teacher_forced(lm, cases)])
    np.testing.assert_allclose(nats, whole, atol=1e-4)
    assert np.abs(np.roll(nats, 1, 1) - whole).max() > 0.01


def test_text_that_is_too_short():
    with pytest.raises(DataError, match="no held-out file has 1000 tokens"):
        passages(FILES, 1, 1000, 0)
    with pytest.raises(DataError, match="length=15 has no room for 1 facts"):
        needle.cases(READER, FILES, 15)
    with pytest.raises(DataError, match="depths="):
        needle.cases(READER, FILES, 200, (1.5,))
    with pytest.raises(DataError, match="length=100 has no room for 8 facts"):
        key_value.cases(READER, FILES, 100)
