"""Conversations: tokens by the model's chat template, and what may be learned.

One is an object with `conversations` (ShareGPT: a list of `from` and `value`) or
`messages` (a list of `role` and `content`). The loss mask is 1 on what the assistant
said, its end-of-turn token included, and 0 on the rest.

The mask is found by rendering, for every answer, the conversation up to where it
begins and up to its end: what the second has more is the answer, up to its last EOS. A
template that renders a beginning otherwise once the conversation goes on (one that
drops earlier thoughts, say) is refused. Tokens are those of the whole text: one that
begins before an answer is not the answer's.
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
    """One, as training takes it."""

    tokens: np.ndarray  # int32[n]
    mask: np.ndarray  # bool[n]: the assistant's


def messages(row: Any) -> Messages:
    """The messages of an object in the form of chat templates.

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
