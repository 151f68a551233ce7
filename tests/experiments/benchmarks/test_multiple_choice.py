"""Questions of a file, and on code."""

import json

import pytest

import models
from experiments.benchmarks import multiple_choice
from models.errors import DataError

SOURCE = "\n".join(f"def f{i}(x):\n    return x * {i} + {i % 7}\n" for i in range(60))


@pytest.fixture(scope="module")
def lm():
    return models.load("tiny")


def test_an_answer_is_cut_where_it_begins(lm):
    """The tokens are those of the whole; planted: parts that were encoded apart."""
    for answer in (" x + 1", "x + 1", "(x):\n"):
        parts = multiple_choice.encoded(lm, "def f(x):\n    return", answer)
        assert lm.tokenizer.decode([*parts[0], *parts[1]]).endswith("return" + answer)
    question, answer = multiple_choice.encoded(lm, "def f(x):\n    return", " x + 1")
    assert [*question, *answer] == lm.tokenizer.encode("def f(x):\n    return x + 1")
    # A token that spans both: the question keeps its own.
    spanned = multiple_choice.encoded(lm, "def f(x):\n    ret", "urn x")
    assert spanned[0] == lm.tokenizer.encode("def f(x):\n    ret")
    assert [*spanned[0], *spanned[1]] != lm.tokenizer.encode("def f(x):\n    return x")


def test_questions_of_a_file(lm, tmp_path):
    row = {"question": "import", "answers": [" os", " sys", " banana"], "right": 1}
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(3)))
    found = multiple_choice.read(lm, str(path), 2)
    assert len(found) == 2 and found[0].right == 1 and len(found[0].answers) == 3
    spelt = [lm.tokenizer.decode(answer) for answer in found[0].answers]
    assert spelt == row["answers"]
    with pytest.raises(DataError, match="has 3 questions, not 5"):
        multiple_choice.read(lm, str(path), 5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "a", "answers": ["b", "c"]}, "right"),
        ({"question": "a", "answers": ["b", "c"], "right": 2}, "index"),
        ({"question": "a", "answers": ["b", "c"], "right": -1}, "right=-1"),
        ({"question": "a", "answers": ["b"], "right": 0}, "two answers"),
        ({"question": "a", "answers": ["b", ""], "right": 0}, "with words"),
        ({"question": "", "answers": ["b", "c"], "right": 0}, "needs words"),
    ],
)
def test_other_rows_are_refused(lm, tmp_path, row, words):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=words):
        multiple_choice.read(lm, str(path))


def test_continuations(lm):
    """The right one follows; the others stand elsewhere. Planted: another seed."""
    sources = [("a.py", SOURCE), ("b.py", "x = 1\n"), ("c.py", SOURCE.upper())]
    sizes = {"before": 12, "size": 6, "choices": 4}
    found = multiple_choice.continuations(lm, sources, 8, **sizes, seed=2)
    files = [lm.tokenizer.encode(text, False) for _, text in sources[::2]]
    stands = lambda part, file: any(
        tuple(file[i : i + len(part)]) == part for i in range(len(file))
    )
    for number, question in enumerate(found):
        file = files[number % 2]
        assert stands(question.prompt + question.answers[question.right], file)
        assert len({*question.answers}) == 4
        assert all(stands(answer, file) for answer in question.answers)
    assert len({question.right for question in found}) > 1
    assert found != multiple_choice.continuations(lm, sources, 8, **sizes, seed=3)


def test_files_that_give_no_question(lm):
    for sources, about, words in (
        ([("b.py", "x = 1\n")], {}, "no file has"),
        ([("b.py", "x" * 4000)], {"before": 2, "size": 2}, "different passages"),
        ([("a.py", SOURCE)], {"choices": 1}, "2 choices"),
    ):
        with pytest.raises(DataError, match=words):
            multiple_choice.continuations(lm, sources, 1, **about)
