"""ParallelBench's files: waiting lines, puzzles and sentences, for real checkpoints.

Kang et al., *ParallelBench: Understanding the Trade-offs of Parallel Decoding in
Diffusion LLMs*, 2025, arXiv 2510.04767.

    tasks(folder) -> names;   read(folder, task) -> problems;   score(problem, text)

A folder holds a folder a group, each with `task_config.yaml` (the prompts) and a
`<task>.jsonl` a task (input, answer). A problem's messages end with its question; the
answered example that some tasks show comes before it.

Texts are scored without any download. So a sentence is scored by the words that it
must hold, and a paraphrase by 1 - BLEU; the authors judge its grammar and meaning too,
by models. The words of a list are checked by `list_rules`.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

from experiments.benchmarks import list_rules
from experiments.measurement import text_overlap
from models import storage
from models.errors import DataError
from models.text import row_files

CONFIG = "task_config.yaml"
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, SyntaxError)
LINES, SENTENCES = "waiting_line", "words_to_sentence"
PARAPHRASES, LATIN, SUDOKU = "paraphrase_summarize", "latin_square", "sudoku"
NEW_TOKENS = {LINES: 32, "waiting_line_n15": 128}  # enough for an answer; else 64


class Problem(NamedTuple):
    """A task's row.

    Attributes:
        task: "group/task".
        messages: dicts with `role` and `content`.
        answer: of the row, for `score`.
        example: the text of a right answer; "": the row has none.
        case: of a waiting line, else None.
    """

    task: str
    messages: list[dict[str, str]]
    answer: Any
    example: str
    case: list_rules.Case | None = None


def tasks(folder: str) -> list[str]:
    """List the tasks that a folder has rows and a prompt of, by group and name.

    Raises:
        DataError: there are none, or a prompt file cannot be read.
    """
    found = []
    for config in sorted(storage.path(folder).glob(f"*/{CONFIG}")):
        for name in sorted(_prompts(config)):
            if (config.parent.parent / f"{name}.jsonl").exists():
                found.append(name)
    if not found:
        raise DataError(
            f"{folder!r} holds no */{CONFIG} with rows beside it: give the folder of "
            "ParallelBench's test sets"
        )
    return found


def read(folder: str, task: str) -> list[Problem]:
    """Read a task's problems, in the file's order.

    Raises:
        DataError: no such task, or a file of another layout.
    """
    place = storage.path(folder)
    prompts = _prompts(place / task.partition("/")[0] / CONFIG)
    if task not in prompts:
        raise DataError(f"{task!r} is no task of {folder!r}: use one of {[*prompts]}")
    problems = []
    for where, line in row_files.lines(place / f"{task}.jsonl"):
        try:
            problems.append(_problem(task, prompts[task], json.loads(line)))
        except MALFORMED as error:
            raise DataError(f"{where}: not a row of {task} ({error!r})") from error
    return problems


def new_tokens(task: str) -> int:
    """Return a canvas's size that holds every answer of a task's group."""
    return NEW_TOKENS.get(task.partition("/")[0], 64)


def score(problem: Problem, text: str) -> float:
    """Return what an answer is worth, 0 to 1: exact but for texts, see the module."""
    group, _, name = problem.task.partition("/")
    if problem.case is not None:
        return float(list_rules.is_right(problem.case, parse_list(text)))
    for start, judge in JUDGES.items():
        if group == start or name.startswith(start):
            return judge(problem.answer, text)
    raise DataError(f"{problem.task!r} has no score here: use another task")


def parse_list(text: str) -> list[str]:
    """Return the items between the last `[` and the `]` behind it.

    Items stand between commas, with or without quotes. A missing bracket is forgiven.
    """
    inside = text.rpartition("[")[2].partition("]")[0]
    return [item.strip('" ') for item in inside.split(",") if item.strip()]


def parse_rows(text: str, size: int, separator: str = "") -> list[list[str]]:
    """Return the lines of a text that have `size` cells, cells without spaces around.

    Args:
        text: an answer.
        size: cells of a row; other lines are no rows.
        separator: between cells; "": a row is a run of digits, commas aside.
    """
    rows = []
    for line in text.splitlines():
        if separator:
            cells = [cell.strip() for cell in line.split(separator)]
        else:
            cells = re.findall(r"\d", line)
        if len(cells) == size:
            rows.append(cells)
    return rows


def latin_score(answer: Any, text: str) -> float:
    """Return 1 where the first rows of the symbols are a Latin square of them."""
    symbols = answer["symbols"]
    wanted = sorted(symbols)
    rows = [row for row in parse_rows(text, len(wanted), ",") if sorted(row) == wanted]
    square = rows[: len(wanted)]
    if len(square) < len(wanted):
        return 0.0
    return float(all(sorted(column) == wanted for column in zip(*square)))


def sudoku_score(answer: Any, text: str) -> float:
    """Return 1 where the rows of digits are the solution's, no more and no fewer."""
    wanted = [list(row) for row in answer.split()]
    return float(parse_rows(text, len(wanted)) == wanted)


def words_score(answer: Any, text: str) -> float:
    """Return 1 where a sentence holds all words, also as parts of others."""
    return float(all(word in text for word in answer["words"]))


def paraphrase_score(answer: Any, text: str) -> float:
    """Return 1 - BLEU against the original sentence; 0 for an empty text."""
    written = text.strip()
    return 1 - text_overlap.bleu(written, answer["text"]) if written else 0.0


JUDGES: dict[str, Callable[[Any, str], float]] = {
    LATIN: latin_score,
    SUDOKU: sudoku_score,
    SENTENCES: words_score,
    PARAPHRASES: paraphrase_score,
}


def _prompts(config: storage.Path) -> dict[str, str]:
    """Read the prompt of every task in a prompt file."""
    try:
        entries = yaml.safe_load(config.read_text(encoding="utf-8"))
        return {name: entry["prompt"] for name, entry in entries.items()}
    except (OSError, yaml.YAMLError, TypeError, AttributeError, KeyError) as error:
        raise DataError(f"{config}: not a file of prompts ({error!r})") from error


def _problem(task: str, prompt: str, row: dict[str, Any]) -> Problem:
    given, answer = row["input"], row["answer"]
    messages = []
    for shown in given.get("icl_examples", ()):
        messages.append(_message("user", _question(prompt, shown["input"])))
        messages.append(_message("assistant", _example(shown["answer"])))
    messages.append(_message("user", _question(prompt, given)))
    group, _, rule = task.partition("/")
    case = None
    if group.startswith(LINES):
        case = _case(rule, given, _example(answer))
    return Problem(task, messages, answer, _example(answer), case)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _question(prompt: str, given: dict[str, Any]) -> str:
    return prompt.format(**given).replace("\\n", "\n")


def _example(answer: Any) -> str:
    """Return the text of a right answer, or ""; a paraphrase has several."""
    if isinstance(answer, str):
        return answer
    if "examples" in answer:
        return ast.literal_eval(answer["examples"])[0]
    return answer.get("example", "")


def _case(rule: str, given: dict[str, Any], example: str) -> list_rules.Case:
    """Make the case of a waiting line; the file's sort is by the whole name."""
    list_rules.check(rule)
    index = given.get("index")
    number = -1 if index is None else index
    items, answer = (tuple(parse_list(text)) for text in (given["context"], example))
    return list_rules.Case(rule, items, given.get("word", ""), number, answer)
