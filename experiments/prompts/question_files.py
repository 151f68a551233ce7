"""Read prompts from a file by category: Spec-Bench's layout, or plain rows.

A row of JSONL or parquet, on disk or at an address `hf://...`, is
`{"category": ..., "turns": [text, ...]}` (Spec-Bench, MT-Bench) or `{"prompt": text}`,
with or without a category. A question of several turns belongs to the task
`multi_turn`, as in Spec-Bench, and gives one prompt a turn. Each prompt holds the turns
before it with plain decoding's greedy answers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import decoding
from models import storage
from models.checkpoints import hub
from models.errors import ConfigError, DataError
from models.text import row_files

MULTI_TURN, PROMPTS = "multi_turn", "prompts"


def read(path: str) -> dict[str, list[list[str]]]:
    """Read {task: questions}, a question being its turns, in the file's order.

    ConfigError if there is no file; DataError names the line that is malformed.
    """
    if not hub.is_data(path) and not storage.path(path).is_file():
        raise ConfigError(
            f"config.data={path!r} is no file: give JSONL or parquet with 'turns' or "
            "'prompt'"
        )
    tasks: dict[str, list[list[str]]] = {}
    for where, line in row_files.lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is no JSON: {error}") from error
        if not isinstance(entry, dict):
            raise DataError(f"{where} is no JSON object")
        turns = entry.get("turns") or [entry.get("prompt")]
        if not isinstance(turns, list) or not all(
            isinstance(turn, str) and turn for turn in turns
        ):
            raise DataError(
                f"{where} has neither texts under 'turns' nor one under 'prompt'"
            )
        task = MULTI_TURN if len(turns) > 1 else str(entry.get("category", PROMPTS))
        tasks.setdefault(task, []).append(turns)
    if not tasks:
        raise DataError(f"{path} holds no question: give rows with 'turns' or 'prompt'")
    return tasks


def choose(path: str, names: Sequence[str]) -> tuple[str, ...]:
    """Check the names of tasks against the file; () chooses all of its tasks."""
    known = tuple(read(path))
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ConfigError(f"{path} has no category {unknown[0]!r}; it has {known}")
    return tuple(names) or known


def build(
    lm: Any,
    path: str,
    names: Sequence[str],
    count: int,
    size: int,
    new: int,
    chat: bool = True,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, list[list[int]]]:
    """Build `count` token prompts of every task.

    Args:
        lm: the model, with a tokenizer.
        path: the question file.
        names: tasks.
        count: prompts of each task.
        size: most tokens of a prompt, counted from its end.
        new: tokens decoded for the answer to an earlier turn.
        chat: whether to use the model's chat template, if it has one.
        variables: of the template.

    Returns:
        Task -> token prompts.
    """
    if lm.tokenizer is None:
        raise ConfigError(
            f"{path} holds texts and the model has no tokenizer.json: add it"
        )
    questions = read(path)

    def answer(prompt: list[int]) -> str:
        texts = decoding.generate(lm, [prompt], max_new_tokens=new).texts
        assert texts is not None, "the tokenizer was checked above"
        return texts[0]

    tasks = {}
    for name in names:
        prompts: list[list[int]] = []
        for turns in questions[name]:
            if len(prompts) < count:
                room = count - len(prompts)
                prompts += conversation(lm, turns[:room], size, answer, chat, variables)
        if len(prompts) < count:
            raise ConfigError(
                f"{path} gives {len(prompts)} prompts of {name!r}, config.prompts="
                f"{count}: lower it, or leave the task out of config.tasks"
            )
        tasks[name] = prompts
    return tasks


def conversation(
    lm: Any,
    turns: Sequence[str],
    size: int,
    answer: Callable[[list[int]], str],
    chat: bool = True,
    variables: Mapping[str, Any] = MappingProxyType({}),
) -> list[list[int]]:
    """Build one prompt a turn. Without `chat` or a template the texts are joined."""
    messages: list[dict[str, str]] = []
    prompts: list[list[int]] = []
    for i, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn})
        if not chat or lm.tokenizer.template is None:
            text = "\n\n".join(m["content"] for m in messages) + "\n\n"
            tokens = lm.tokenizer.encode(text)
        else:
            tokens = lm.tokenizer.chat(messages, **variables)
        prompts.append(tokens[-size:])
        if i + 1 < len(turns):
            reply = answer(prompts[-1])
            messages.append({"role": "assistant", "content": reply})
    return prompts
