"""Questions with answers to choose from: of a file, or continuations of held-out code.

    read(lm, source, ..) -> questions;   continuations(lm, sources, ..) -> questions

`training/evaluation/multiple_choice.py` scores the answers.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

from models.errors import DataError
from models.text import row_files
from training.evaluation.multiple_choice import Question


def encoded(lm: Any, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Encode a question and an answer as one text, and cut it where the answer begins.

    Where the tokens of the whole do not begin with those of the question, a token spans
    both; then the parts are encoded apart.
    """
    begun, whole = (lm.tokenizer.encode(text) for text in (question, question + answer))
    if whole[: len(begun)] != begun:
        return begun, lm.tokenizer.encode(answer, False)
    return begun, whole[len(begun) :]


def read(lm: Any, source: str, count: int = 0) -> list[Question]:
    """Read rows {"question": text, "answers": [texts], "right": index}.

    An answer is joined to its question as it is: one begins with a blank where it
    should.

    Args:
        lm: the model, for its tokenizer.
        source: a file of JSON lines or parquet, or hf://...
        count: the first questions; 0: all.

    Raises:
        DataError: a row of another form, an empty text, or too few rows.
    """
    found: list[Question] = []
    for where, line in row_files.lines(source):
        try:
            row = json.loads(line)
            question, answers, right = (
                row[x] for x in ("question", "answers", "right")
            )
            pairs = [encoded(lm, question, answer) for answer in answers]
            if right < 0:
                raise IndexError(f"right={right}")
            right = range(len(pairs))[right]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f'{where}: not a row with a "question", "answers" and the index '
                f'"right" ({error!r})'
            ) from error
        if len(pairs) < 2 or not all(all(pair) for pair in pairs):
            raise DataError(
                f"{where}: a question needs words, and two answers or more with words"
            )
        prompts = {tuple(prompt) for prompt, _ in pairs}
        assert len(prompts) == 1  # `encoded` cuts all where the question ends
        parts = tuple(tuple(answer) for _, answer in pairs)
        found.append(Question(prompts.pop(), parts, right))
        if len(found) == count:
            break
    if len(found) < max(count, 1):
        raise DataError(
            f"{source} has {len(found)} questions, not {count}: ask for fewer"
        )
    return found


def continuations(
    lm: Any,
    sources: Sequence[tuple[str, str]],
    count: int,
    before: int = 48,
    size: int = 12,
    choices: int = 4,
    seed: int = 0,
) -> list[Question]:
    """Ask which tokens follow a passage; the others are of random places of its file.

    Args:
        lm: the model, for its tokenizer.
        sources: (path, text) of held-out files, of `builtin_tasks.held_out`.
        count: questions; each file gives one in turn.
        before: tokens of the passage.
        size: tokens of an answer.
        choices: answers of a question.
        seed: of the places.

    Raises:
        DataError: a count that is too small, or no file that is long enough.
    """
    if min(count, before, size) < 1 or choices < 2:
        raise DataError(
            f"count={count}, before={before}, size={size}, choices={choices}: use at "
            "least 1 of each, and 2 choices"
        )
    rng, found = random.Random(seed), []
    files = [lm.tokenizer.encode(text, False) for _, text in sources]
    files = [tokens for tokens in files if len(tokens) >= before + 4 * choices * size]
    if not files:
        raise DataError(
            f"no file has {before + 4 * choices * size} tokens: use shorter passages, "
            "or longer files"
        )
    for number in range(count):
        tokens = files[number % len(files)]
        at = rng.randrange(before, len(tokens) - size + 1)
        right = tuple(tokens[at : at + size])
        answers = {right: None}
        places = range(len(tokens) - size + 1)
        for place in rng.sample(places, len(places)):
            if len(answers) < choices:
                answers[tuple(tokens[place : place + size])] = None
        if len(answers) < choices:
            raise DataError(
                f"a file has {len(answers)} different passages of {size} tokens, and a "
                f"question needs {choices}: leave it out"
            )
        order = rng.sample([*answers], choices)
        prompt = tuple(tokens[at - before : at])
        found.append(Question(prompt, tuple(order), order.index(right)))
    return found
