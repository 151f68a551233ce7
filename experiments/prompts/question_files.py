"""Prompts from a file: Spec-Bench's layout, or plain JSONL, by category.

A line is `{"category": ..., "turns": [text, ...]}` (Spec-Bench, MT-Bench) or
`{"prompt": text}`, with or without a category. A question of several turns belongs to
the task `multi_turn`, as Spec-Bench counts them, and gives one prompt a turn: each
holds the turns before it and plain decoding's greedy answers to them.
"""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import decoding
from models.errors import ConfigError, DataError

MULTI_TURN, PROMPTS = "multi_turn", "prompts"


def read(path: str) -> dict[str, list[list[str]]]:
    """Task -> questions, each its turns; tasks and questions in the file's order."""
    file = pathlib.Path(path)
    if not file.is_file():
        raise ConfigError(
            f"config.data={path!r} is no file: give JSONL with 'turns' or 'prompt'"
        )
    found: dict[str, list[list[str]]] = {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: not a readable UTF-8 file ({error})") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            whole = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}:{number} is no JSON: {error}") from error
        if not isinstance(whole, dict):
            raise DataError(f"{file}:{number} is no JSON object")
        turns = whole.get("turns") or [whole.get("prompt")]
        if not isinstance(turns, list) or not all(
            isinstance(turn, str) and turn for turn in turns
        ):
            raise DataError(
                f"{file}:{number} has neither texts under 'turns' nor one under "
                "'prompt'"
            )
        task = MULTI_TURN if len(turns) > 1 else str(whole.get("category", PROMPTS))
        found.setdefault(task, []).append(turns)
    if not found:
        raise DataError(f"{file} holds no question")
    return found


def choose(path: str, names: Sequence[str]) -> tuple[str, ...]:
    """The tasks to run: those named, or all of the file."""
    known = tuple(read(path))
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ConfigError(f"{path} has no category {unknown[0]!r}; it has {known}")
    return tuple(names) or known


def build(
    lm: Any, path: str, names: Sequence[str], count: int, size: int, new: int
) -> dict[str, list[list[int]]]:
    """`count` token prompts of every task, the last `size` tokens of each.

    `new` tokens are decoded for the answer to an earlier turn.
    """
    if lm.tokenizer is None:
        raise ConfigError(f"{path} holds texts and the model has no tokenizer.json")
    questions = read(path)

    def answer(prompt: list[int]) -> str:
        texts = decoding.generate(lm, [prompt], max_new_tokens=new).texts
        assert texts is not None, "the tokenizer was checked above"
        return texts[0]

    found = {}
    for name in names:
        prompts: list[list[int]] = []
        for turns in questions[name]:
            if len(prompts) < count:
                room = count - len(prompts)
                prompts += conversation(lm, turns[:room], size, answer)
        if len(prompts) < count:
            raise ConfigError(
                f"{path} gives {len(prompts)} prompts of {name!r}, config.prompts="
                f"{count}: lower it, or leave the task out of config.tasks"
            )
        found[name] = prompts
    return found


def conversation(
    lm: Any, turns: Sequence[str], size: int, answer: Callable[[list[int]], str]
) -> list[list[int]]:
    """One prompt a turn. Without a chat template the texts follow one another."""
    messages: list[dict[str, str]] = []
    prompts: list[list[int]] = []
    for i, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn})
        if lm.tokenizer.template is None:
            text = "\n\n".join(m["content"] for m in messages) + "\n\n"
            tokens = lm.tokenizer.encode(text)
        else:
            tokens = lm.tokenizer.chat(messages)
        prompts.append(tokens[-size:])
        if i + 1 < len(turns):
            said = answer(prompts[-1])
            messages.append({"role": "assistant", "content": said})
    return prompts
