"""Prompts from files of questions."""

import json

import pytest

import models
from experiments.prompts import question_files
from models.errors import ConfigError, DataError

LINES = [
    {"category": "writing", "turns": ["Compose a poem.", "Shorten it."]},
    {"category": "qa", "turns": ["Who?"]},
    {"category": "coding", "turns": ["Write add.", "And sub."]},
    {"prompt": "Once upon a time"},
    {"category": "qa", "turns": ["Where?"]},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return str(path)


@pytest.fixture(scope="module")
def lm():
    lm = models.load("tiny")
    lm.tokenizer.template = None
    return lm


def test_categories_in_the_files_order(file):
    found = question_files.read(file)
    assert list(found) == ["multi_turn", "qa", "prompts"]
    assert found["qa"] == [["Who?"], ["Where?"]]
    assert [len(turns) for turns in found["multi_turn"]] == [2, 2]
    assert question_files.choose(file, ()) == ("multi_turn", "qa", "prompts")
    assert question_files.choose(file, ("qa",)) == ("qa",)


def test_a_later_turn_holds_the_answers_before_it(lm):
    asked = []

    def answer(prompt):
        asked.append(lm.tokenizer.decode(prompt))
        return "Roses."

    prompts = question_files.conversation(
        lm, ["A poem.", "Shorter.", "More."], 99, answer
    )
    texts = [lm.tokenizer.decode(p) for p in prompts]
    assert texts[0] == "A poem.\n\n"
    assert texts[1] == "A poem.\n\nRoses.\n\nShorter.\n\n"
    assert texts[2].endswith("Shorter.\n\nRoses.\n\nMore.\n\n")
    assert asked == texts[:2]  # nothing is decoded for the last turn


def test_a_chat_template_is_used_where_there_is_one(lm, monkeypatch):
    monkeypatch.setattr(lm.tokenizer, "template", "{{ messages[0].content }}!")
    prompts = question_files.conversation(lm, ["Hi"], 99, lambda prompt: "")
    assert lm.tokenizer.decode(prompts[0]) == "Hi!"


def test_variables_reach_the_template(lm, file, monkeypatch):
    """Planted: without them the same question has another prompt."""
    template = "{{ messages[0].content }}{% if enable_thinking is false %}.{% endif %}"
    monkeypatch.setattr(lm.tokenizer, "template", template)
    build = lambda **f: question_files.build(lm, file, ("qa",), 1, 12, 4, **f)["qa"][0]
    quiet = build(variables={"enable_thinking": False})
    assert lm.tokenizer.decode(quiet) == "Who?."
    assert lm.tokenizer.decode(build()) == "Who?"


def test_prompts_by_task(lm, file):
    found = question_files.build(lm, file, ("qa", "multi_turn"), 2, 12, 4)
    assert [lm.tokenizer.decode(p) for p in found["qa"]] == ["Who?\n\n", "Where?\n\n"]
    assert len(found["multi_turn"]) == 2
    assert lm.tokenizer.decode(found["multi_turn"][1]).endswith("Shorten it.\n\n")
    assert all(len(p) <= 12 for p in found["multi_turn"])


@pytest.mark.parametrize("line,words", [("{", "no JSON"), ('{"a": 1}', "neither")])
def test_bad_lines(tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=words):
        question_files.read(str(path))


def test_bad_settings(lm, file, tmp_path):
    with pytest.raises(ConfigError, match="is no file"):
        question_files.read(str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match="no category 'maths'"):
        question_files.choose(file, ("maths",))
    with pytest.raises(ConfigError, match="gives 2 prompts of 'qa'"):
        question_files.build(lm, file, ("qa",), 3, 12, 4)
