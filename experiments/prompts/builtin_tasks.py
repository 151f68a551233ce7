"""Built-in prompts: held-out code to complete, code to copy with an edit, free text.

Code comes from the running interpreter's standard library, so nothing is downloaded.
Its files are those of the validation split of `stdlib_code` (by a hash of their path):
a model trained on `stdlib_code` has not seen them. Another hash fixes their order.
"""

import hashlib
import json
import pathlib
import re
import sysconfig
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np

from models.errors import ConfigError

NAME = re.compile(r"\b[a-z_][a-z0-9_]{2,}\b")
KEYWORDS = frozenset(
    "and assert class def del elif else except finally for from global import lambda "
    "None not pass raise return self try True False while with yield".split()
)
TEXTS = resources.files("experiments").joinpath("prompts", "text.jsonl")
RETYPED = 16  # tokens of the edited copy at the end of the prompt


def held_out() -> list[tuple[str, str]]:
    """List (path, text) of the validation files, shuffled by a hash of the path."""
    # Imported here: the data set library takes seconds to load, and only code needs it.
    from training.data.stdlib_code import stdlib_code

    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    validation = [
        (path, text)
        for path, text in stdlib_code.files(root)
        if stdlib_code.split_of(path) == "validation"
    ]
    if not validation:
        raise ConfigError(
            f"{root} holds no source of the standard library: install it, or leave the "
            "tasks 'code' and 'copy' out of config.tasks"
        )
    return sorted(
        validation, key=lambda f: hashlib.sha256(b"order " + f[0].encode()).digest()
    )


def code(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Cut the `size` tokens of a file that end with the head of a definition."""
    prompts = []
    for _, text in files:
        heads = [m.end() for m in re.finditer(r"^ *def .*:\n", text, re.M)]
        for end in heads[len(heads) // 2 :]:
            tokens = lm.tokenizer.encode(text[:end])
            if len(tokens) >= size:
                prompts.append(tokens[-size:])
                break
        if len(prompts) == count:
            return prompts
    raise ConfigError(
        f"the held-out files give {len(prompts)} code prompts, not {count}: lower "
        "config.prompts"
    )


def copy(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Join a passage, a comment that asks for an edit of it, and the copy's start.

    The edit renames the passage's commonest name. The prompt ends with the first
    `RETYPED` tokens of the edited copy.
    """
    prompts = []
    for _, text in files:
        start_at = text.find("\ndef ", len(text) // 3)
        start_at = text.find("\nclass ", len(text) // 3) if start_at < 0 else start_at
        if start_at < 0:
            continue
        body = text[start_at + 1 :]
        for share in (1.0, 0.9, 0.8, 0.7):
            whole = lm.tokenizer.encode(body[: size * 8])
            passage = lm.tokenizer.decode(whole[: int(share * (size - RETYPED - 16))])
            passage = passage[: passage.rfind("\n") + 1]
            names = [n for n in NAME.findall(passage) if n not in KEYWORDS]
            if not names:
                break
            old = max(sorted(set(names)), key=names.count)
            edited = re.sub(rf"\b{old}\b", f"{old}2", passage)
            start = lm.tokenizer.encode(edited)[:RETYPED]
            request = f"\n# The same, with {old} renamed to {old}2:\n\n"
            tokens = [*lm.tokenizer.encode(passage + request), *start]
            if len(tokens) <= size:
                if len(passage) > size:  # a shorter passage is too little to copy
                    prompts.append(tokens)
                break
        if len(prompts) == count:
            return prompts
    raise ConfigError(
        f"the held-out files give {len(prompts)} copy prompts, not {count}: lower "
        "config.prompts"
    )


def text(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Take English text in the style of comments, written for this project."""
    lines = TEXTS.read_text()
    texts = [json.loads(line)["text"] for line in lines.splitlines()]
    if len(texts) < count:
        raise ConfigError(
            f"experiments/prompts/text.jsonl has {len(texts)} texts, not {count}: "
            "lower config.prompts"
        )
    return [lm.tokenizer.encode(line)[-size:] for line in texts[:count]]


def regex(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Take free text; a constraint of config.transforms sets the answer's pattern."""
    return text(lm, files, count, size)


def random(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Draw uniform tokens, to time a model without a tokenizer."""
    rng = np.random.default_rng(0)
    return rng.integers(1, lm.model.config.vocab_size, (count, size)).tolist()


TASKS: dict[str, Callable[..., list]] = {
    "code": code,
    "copy": copy,
    "text": text,
    "regex": regex,
    "random": random,
}


def build(lm: Any, names: Sequence[str], count: int, size: int) -> dict[str, list]:
    """Build {task: `count` token prompts}, none longer than `size` tokens."""
    unknown = [n for n in names if n not in TASKS]
    if unknown:
        raise ConfigError(f"no task {unknown[0]!r}; there are {sorted(TASKS)}")
    if lm.tokenizer is None and set(names) != {"random"}:
        raise ConfigError(
            f"the tasks {list(names)} need a tokenizer and the model has none: add "
            "tokenizer.json, or use config.tasks=('random',)"
        )
    files = held_out() if {"code", "copy"} & set(names) else []
    return {name: TASKS[name](lm, files, count, size) for name in names}
