"""Conversations in JSONL: tokens by the model's chat template, and what may be learned.

A line is an object with `conversations` (ShareGPT: a list of `from` and `value`) or
`messages` (a list of `role` and `content`). The loss mask is 1 on what the assistant
said, its end-of-turn token included, and 0 on the rest.

The mask is found by rendering, for every answer, the conversation up to where it
begins and up to its end: what the second has more is the answer, up to its last EOS. A
template that renders a beginning otherwise once the conversation goes on (one that
drops earlier thoughts, say) is refused, with the line. Tokens are those of the whole
text: one that begins before an answer is not the answer's.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError, PromptError

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
}
Messages = list[dict[str, Any]]


class Conversation(NamedTuple):
    """One line, as training takes it."""

    tokens: np.ndarray  # int32[n]
    mask: np.ndarray  # bool[n]: the assistant's


def messages(row: Any) -> Messages:
    """The messages of a line's object in the form of chat templates.

    Raises `DataError` for an unknown role or a missing text.
    """
    if not isinstance(row, dict):
        raise DataError("no JSON object")
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise DataError("no messages or conversations, or an empty list of them")
    found = []
    for number, turn in enumerate(turns, 1):
        said = turn if isinstance(turn, dict) else {}
        role, text = said.get("role", said.get("from")), said.get("content")
        text = said.get("value") if text is None else text
        if not isinstance(role, str) or role not in ROLES or not isinstance(text, str):
            raise DataError(
                f"turn {number}: role {role!r} and a text of type "
                f"{type(text).__name__}; roles are {sorted(ROLES)}"
            )
        found.append({"role": ROLES[role], "content": text})
    return found


def read(path: str | pathlib.Path) -> Iterator[tuple[int, Messages]]:
    """Line numbers and messages of a file; `DataError` names a line without any."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable UTF-8 file ({error})") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, messages(json.loads(line))
        except (ValueError, RecursionError) as error:  # DataError is a ValueError
            raise DataError(f"{path}, line {number}: {error}") from error


def render(lm: Any, said: Messages) -> Conversation:
    """Tokens and mask of one conversation.

    Raises `PromptError` where the template refuses it, `DataError` where its parts do
    not agree with the whole.
    """
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise DataError("the model has no tokenizer.json to read text with")
    text = tokenizer.chat_text(said, add_generation_prompt=False)
    whole = tokenizer.inner.encode(text, add_special_tokens=False)
    tokens = np.asarray(whole.ids, np.int32)
    starts = np.asarray([a for a, _ in whole.offsets])
    mask = np.zeros(len(tokens), bool)
    for i, message in enumerate(said):
        if message["role"] != "assistant":
            continue
        before = tokenizer.chat_text(said[:i], add_generation_prompt=True)
        after = tokenizer.chat_text(said[: i + 1], add_generation_prompt=False)
        if not (text.startswith(before) and text.startswith(after)):
            raise DataError(
                f"turn {i + 1}: the template renders the conversation up to here "
                "otherwise once it goes on: a mask cannot be found; use another "
                "template, or split the conversation"
            )
        own = np.flatnonzero((starts >= len(before)) & (starts < len(after)))
        ends = np.flatnonzero(np.isin(tokens[own], lm.config.eos))
        mask[own[: ends[-1] + 1] if len(ends) else own] = True
    return Conversation(tokens, mask)


def load(lm: Any, path: str | pathlib.Path, longest: int = 0) -> list[Conversation]:
    """All conversations of a file; longer ones are cut to `longest` tokens (0: none).

    Raises `DataError` where a line cannot be used, or where nothing may be learned.
    """
    found = []
    for number, said in read(path):
        try:
            one = render(lm, said)
        except (DataError, PromptError) as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        size = longest or len(one.tokens)
        found.append(Conversation(one.tokens[:size], one.mask[:size]))
    if not any(one.mask.any() for one in found):
        raise DataError(
            f"{path}: the loss mask is zero everywhere: no line has an assistant's turn"
        )
    return found


def documents(found: Sequence[Conversation]) -> tuple[list, list]:
    """Documents and masks for `data.Corpus`; the separator is never learned."""
    masks = [np.append(one.mask, False) for one in found]
    return [one.tokens for one in found], masks
