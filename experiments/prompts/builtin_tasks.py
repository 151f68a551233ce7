"""The prompts: held-out code to complete, code to copy with an edit, free text.

Code comes from the running interpreter's own standard library, from the files that the
training data's split keeps out (by a hash of their path), in an order fixed by another
hash: so nothing is downloaded, and a model trained on `stdlib_code` has not seen it.
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
RETYPED = 16  # tokens of the edited copy that the prompt gives


def held_out() -> list[tuple[str, str]]:
    """(path, text) of the validation files, shuffled by a hash of the path."""
    # Imported here: the data set library takes seconds to load, and only code needs it.
    from training.data.stdlib_code import stdlib_code

    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    kept = [
        (path, text)
        for path, text in stdlib_code.files(root)
        if stdlib_code.split_of(path) == "validation"
    ]
    if not kept:
        raise ConfigError(
            f"{root} holds no source of the standard library: install it, or leave the "
            "tasks 'code' and 'copy' out of config.tasks"
        )
    return sorted(
        kept, key=lambda f: hashlib.sha256(b"order " + f[0].encode()).digest()
    )


def code(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """The `size` tokens of a file that end with the head of a definition."""
    found = []
    for _, text in files:
        heads = [m.end() for m in re.finditer(r"^ *def .*:\n", text, re.M)]
        for end in heads[len(heads) // 2 :]:
            tokens = lm.tokenizer.encode(text[:end])
            if len(tokens) >= size:
                found.append(tokens[-size:])
                break
        if len(found) == count:
            return found
    raise ConfigError(f"the held-out files give {len(found)} code prompts, not {count}")


def copy(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """A passage, a comment that asks for an edit of it, and the edited copy's start.

    The edit renames the passage's commonest name. The copy goes on for as long as the
    passage does, and the model sees its first `RETYPED` tokens.
    """
    found = []
    for _, text in files:
        at = text.find("\ndef ", len(text) // 3)
        at = text.find("\nclass ", len(text) // 3) if at < 0 else at
        if at < 0:
            continue
        body = text[at + 1 :]
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
            asked = f"\n# The same, with {old} renamed to {old}2:\n\n"
            tokens = [*lm.tokenizer.encode(passage + asked), *start]
            if len(tokens) <= size:
                if len(passage) > size:  # of less there is too little to copy
                    found.append(tokens)
                break
        if len(found) == count:
            return found
    raise ConfigError(f"the held-out files give {len(found)} copy prompts, not {count}")


def text(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """English as it stands in comments and docstrings, written for this project."""
    lines = TEXTS.read_text()
    kept = [json.loads(line)["text"] for line in lines.splitlines()]
    if len(kept) < count:
        raise ConfigError(f"experiments/prompts/text.jsonl has {len(kept)} texts")
    return [lm.tokenizer.encode(line)[-size:] for line in kept[:count]]


def regex(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Free text to be answered in a language; its pattern is in config.transforms."""
    return text(lm, files, count, size)


def random(lm: Any, files: Sequence[tuple[str, str]], count: int, size: int) -> list:
    """Uniform tokens: what a model without a tokenizer can be timed on."""
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
    """Token prompts of every task, none longer than `size`."""
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
