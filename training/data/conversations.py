"""Conversations: tokens by the model's chat template, and the loss mask.

A conversation is an object with `conversations` (ShareGPT: a list of `from` and
`value`) or `messages` (a list of `role` and `content`). The loss mask is 1 on the
assistant's text, its end-of-turn token included, and 0 on the rest.

For every answer the conversation is rendered twice: up to where the answer begins, and
up to its end. The difference is the answer, up to its last EOS. Templates that render a
beginning differently once the conversation continues are refused (those that drop
earlier thoughts, say). Tokens are those of the whole text: a token that begins before
an answer is not part of it.
"""

from typing import Any, NamedTuple

import numpy as np

from models.errors import DataError

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
    """One conversation, tokenised, with its loss mask."""

    tokens: np.ndarray  # int32[n]
    mask: np.ndarray  # bool[n]: the assistant's tokens


def messages(row: Any) -> Messages:
    """Convert an object to messages with the roles of chat templates.

    Raises `DataError` for an unknown role or a missing text.
    """
    if not isinstance(row, dict):
        raise DataError("no JSON object: use {'messages': [..]}")
    turns = row.get("messages", row.get("conversations"))
    if not isinstance(turns, list) or not turns:
        raise DataError("no messages or conversations, or an empty list of them")
    converted = []
    for number, turn in enumerate(turns, 1):
        fields = turn if isinstance(turn, dict) else {}
        role, text = fields.get("role", fields.get("from")), fields.get("content")
        text = fields.get("value") if text is None else text
        if not isinstance(role, str) or role not in ROLES or not isinstance(text, str):
            raise DataError(
                f"turn {number}: role {role!r} and a text of type "
                f"{type(text).__name__}: use a string, and a role of {sorted(ROLES)}"
            )
        converted.append({"role": ROLES[role], "content": text})
    return converted


def render(lm: Any, said: Messages) -> Conversation:
    """Tokenise one conversation, and mask the assistant's tokens.

    Raises `PromptError` where the template refuses it, `DataError` where it renders a
    beginning differently once the conversation continues.
    """
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise DataError("the model has no tokenizer.json: use another model")
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
        inside = np.flatnonzero((starts >= len(before)) & (starts < len(after)))
        ends = np.flatnonzero(np.isin(tokens[inside], lm.config.eos))
        mask[inside[: ends[-1] + 1] if len(ends) else inside] = True
    return Conversation(tokens, mask)
