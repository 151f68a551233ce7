"""ParallelBench's files: prompts, parsers and scores, on rows written here."""

import json

import pytest

from experiments.benchmarks import list_rules, parallelbench
from models.errors import DataError

PROMPTS = """
waiting_line/{rule}:
  prompt: 'Line: {{context}}

    Go.'
"""
LINE = '["Ann Lee", "Bob Fox", "Cy Day"]'


def lay(folder, group: str, prompts: str, tasks: dict[str, list]) -> None:
    """Write a group's prompts and rows."""
    place = folder / group
    place.mkdir(parents=True, exist_ok=True)
    (place / parallelbench.CONFIG).write_text(prompts)
    for name, rows in tasks.items():
        (place / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def line_of(rule: str, **given) -> dict:
    """A row of a waiting line, with its rule's first answer."""
    items = tuple(parallelbench.parse_list(LINE))
    number, word = given.get("index", -1), given.get("word", "")
    case = list_rules.Case(rule, items, word, number, ())
    answer = json.dumps(list_rules.answers(case)[0])
    wrapped = {"input": [*items], "example": answer}
    answer = wrapped if rule == "shuffle" or rule.endswith("random") else answer
    return {"input": {"context": LINE, **given}, "answer": answer}


GIVEN = {
    "insert_index": {"word": "Di Ivy", "index": 2},
    "insert_random": {"word": "Di Ivy"},
    "remove_index": {"index": 0},
    "replace_index": {"word": "Di Ivy", "index": 1},
    "replace_random": {"word": "Di Ivy"},
}


@pytest.mark.parametrize("rule", list_rules.LISTS)
def test_waiting_lines(tmp_path, rule):
    """The row's answer passes; planted: an answer without its first name."""
    row = line_of(rule, **GIVEN.get(rule, {}))
    lay(tmp_path, "waiting_line", PROMPTS.format(rule=rule), {rule: [row]})
    (problem,) = parallelbench.read(str(tmp_path), f"waiting_line/{rule}")
    assert parallelbench.score(problem, problem.example) == 1
    assert parallelbench.score(problem, f"Sure: {problem.example}. Bye") == 1
    short = problem.example.partition(",")[2]
    assert parallelbench.score(problem, f"[{short}") == 0
    assert parallelbench.score(problem, "") == 0
    (message,) = problem.messages
    assert message == {"role": "user", "content": f"Line: {LINE}\nGo."}


def test_an_example_comes_before_the_question(tmp_path):
    """Planted: the example's answer as the question's."""
    row = line_of("shuffle")
    row["input"]["icl_examples"] = [line_of("shuffle")]
    lay(tmp_path, "waiting_line", PROMPTS.format(rule="shuffle"), {"shuffle": [row]})
    (problem,) = parallelbench.read(str(tmp_path), "waiting_line/shuffle")
    roles = [message["role"] for message in problem.messages]
    assert roles == ["user", "assistant", "user"]
    assert problem.messages[1]["content"] == problem.example != LINE
    assert parallelbench.score(problem, LINE) == 0


def test_lists_are_read_from_the_last_bracket():
    """Planted: the first one."""
    text = 'From ["a b"] to [c d, "e", ] and more]'
    assert parallelbench.parse_list(text) == ["c d", "e"]
    assert parallelbench.parse_list(text[::1].replace("[c", "c")) == ["a b"]
    assert parallelbench.parse_list('["x", "y') == ["x", "y"]
    assert parallelbench.parse_list("") == []


def test_puzzles(tmp_path):
    """Planted: a square whose rows alone, or whose columns alone, are right."""
    latin = {"symbols": ["A", "7", "K"], "example": "A,7,K\n7,K,A\nK,A,7"}
    sudoku = "1234\n3412\n2143\n4321"
    prompts = (
        "puzzle/latin_square_n3:\n  prompt: 'Of {symbols}.'\n"
        "puzzle/sudoku_n4_12:\n  prompt: 'Fill\\n{sudoku}\\n'\n"
    )
    rows = {
        "latin_square_n3": [{"input": {"symbols": "[A, 7, K]"}, "answer": latin}],
        "sudoku_n4_12": [{"input": {"sudoku": "0234"}, "answer": sudoku}],
    }
    lay(tmp_path, "puzzle", prompts, rows)
    names = parallelbench.tasks(str(tmp_path))
    assert names == ["puzzle/latin_square_n3", "puzzle/sudoku_n4_12"]
    (square,), (grid,) = (parallelbench.read(str(tmp_path), name) for name in names)
    score = parallelbench.score
    assert score(square, f"Here:\n{square.example}\nOK") == 1
    assert score(square, "7, K, A\nK,A,7\nA,7,K") == 1
    assert score(square, "A,7,K\nA,7,K\nA,7,K") == 0
    assert score(square, "A,A,A\n7,7,7\nK,K,K") == 0
    assert score(square, "A,7,K\n7,K,A") == 0
    assert grid.messages[0]["content"] == "Fill\n0234\n"
    assert score(grid, sudoku) == score(grid, "1 2 3 4\n3,4,1,2\n\n2143\n4321") == 1
    assert score(grid, sudoku.replace("4321", "4312")) == 0
    assert score(grid, f"{sudoku}\n1234") == 0


def test_texts(tmp_path):
    """Planted: a copy for a paraphrase, a word too few for a sentence."""
    lay(
        tmp_path,
        "words_to_sentence",
        "words_to_sentence/easy:\n  prompt: 'Use {words}.'\n",
        {"easy": [{"input": {"words": "a"}, "answer": {"words": ["cat", "mat"]}}]},
    )
    original = "the cat sat on the mat"
    answer = {"text": original, "examples": "['It\\'s a \"cat\"', 'b']"}
    lay(
        tmp_path,
        "paraphrase_summarize",
        "paraphrase_summarize/p:\n  prompt: '{text}'\n"
        "paraphrase_summarize/absent:\n  prompt: '{text}'\n",
        {"p": [{"input": {"text": original}, "answer": answer}]},
    )
    names = parallelbench.tasks(str(tmp_path))
    assert names == ["paraphrase_summarize/p", "words_to_sentence/easy"]
    (other,), (sentence,) = (parallelbench.read(str(tmp_path), n) for n in names)
    assert sentence.example == "" and other.example == 'It\'s a "cat"'
    assert parallelbench.score(sentence, "cats on mats") == 1
    assert parallelbench.score(sentence, "cats") == 0
    assert parallelbench.score(other, original) == 0 == parallelbench.score(other, " ")
    near = parallelbench.score(other, "the cat sat on a mat")
    assert 0 < near < parallelbench.score(other, "a feline sits here") == 1


def test_canvases():
    assert parallelbench.new_tokens("waiting_line/copy") == 32
    assert parallelbench.new_tokens("puzzle/sudoku_n4_12") == 64


def test_refusals(tmp_path):
    with pytest.raises(DataError, match="give the folder of ParallelBench"):
        parallelbench.tasks(str(tmp_path))
    lay(tmp_path, "waiting_line", PROMPTS.format(rule="sort"), {"sort": [{"input": 1}]})
    with pytest.raises(DataError, match="is no task of"):
        parallelbench.read(str(tmp_path), "waiting_line/copy")
    with pytest.raises(DataError, match=r"line 1: not a row of waiting_line/sort"):
        parallelbench.read(str(tmp_path), "waiting_line/sort")
    lay(tmp_path, "waiting_line", "just words", {})
    with pytest.raises(DataError, match="not a file of prompts"):
        parallelbench.tasks(str(tmp_path))
    strange = parallelbench.Problem("odd/task", [], "", "")
    with pytest.raises(DataError, match="has no score here"):
        parallelbench.score(strange, "x")
